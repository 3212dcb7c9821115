"""PTX instructions as calls of ptx.hpp: one function for each group of instructions."""

from __future__ import annotations

import re
from collections.abc import Callable

from text import split


class UnknownInstructionError(Exception):
    """The emulator lacks this instruction."""


TYPES = {
    "pred": "bool",
    "b8": "unsigned char",
    "u8": "unsigned char",
    "b16": "unsigned short",
    "u16": "unsigned short",
    "b32": "unsigned",
    "u32": "unsigned",
    "s32": "int",
    "b64": "unsigned long long",
    "u64": "unsigned long long",
    "f32": "float",
}


def items(text: str) -> list[str]:
    """The operands of a list, or of one in braces or brackets."""
    text = text.strip()
    if text and text[0] in "{[":
        text = text[1:-1]
    return [item.strip() for item in split(text, ",")] if text.strip() else []


def value(operand: str) -> str:
    """A register, an operand of the asm statement, or a number."""
    operand = operand.strip()
    sign = ""
    if operand.startswith("!"):
        sign, operand = "!", operand[1:].strip()
    if match := re.match(r"%(\d+)$", operand):
        return f"{sign}operand_{match[1]}"
    if operand.lstrip("%") == "tid.x":
        return "threadIdx.x"
    if operand.startswith("0f"):
        return f"emulator::bits<float>(0x{operand[2:]}u)"
    if re.match(r"-?\d|0x", operand):
        return operand
    return f"{sign}reg_{operand}"


def address(operand: str) -> str:
    """[register] or [register + offset]."""
    text = operand.strip()[1:-1].strip()
    if match := re.match(r"(.*?)\s*\+\s*(%\d+|\d+)$", text):
        return f"({value(match[1])} + {value(match[2])})"
    return value(text)


def pointers(operand: str, kind: str = "float") -> str:
    """Declares destinations: the addresses of registers."""
    places = ", ".join(f"&{value(item)}" for item in items(operand))
    return f"{kind}* destinations[] = {{{places}}}; "


def values(operand: str, name: str, kind: str = "unsigned") -> str:
    """Declares an array of the values of registers."""
    listed = ", ".join(f"({kind}){value(item)}" for item in items(operand))
    return f"const {kind} {name}[] = {{{listed}}}; "


def flag(condition: bool) -> str:
    """A Python bool as a C++ literal."""
    return "true" if condition else "false"


def wgmma_mma(op: str, o: list[str]) -> str:
    """wgmma.mma_async."""
    match = re.search(r"m64n(\d+)k(16|32)\.f32\.(bf16|f16|e4m3|e5m2)\.(bf16|f16|e4m3|e5m2)", op)
    if match is None or (match[2] == "32") != match[3].startswith("e"):
        raise UnknownInstructionError(op)
    in_registers = o[1].strip().startswith("{")
    code = pointers(o[0])
    transposes = match[2] == "16"  # 8-bit operands are K-major
    transpose_a = value(o[6]) if transposes and not in_registers else "0"
    transpose_b = value(o[6] if in_registers else o[7]) if transposes else "0"
    types = f"emulator::Element::{match[3]}, emulator::Element::{match[4]}"
    a = "0" if in_registers else value(o[1])
    if in_registers:
        code += values(o[1], "a")
    return (
        f"{code}emulator::wgmma({{{match[1]}, {types}, {a}, {value(o[2])}, "
        f"{value(o[3])}, (float){value(o[4])}, (float){value(o[5])}, (int){transpose_a}, "
        f"(int){transpose_b}}}, destinations, {'a' if in_registers else 'nullptr'});"
    )


def mma(op: str, o: list[str]) -> str:
    """mma.sync m16n8k16."""
    return (
        pointers(o[0])
        + values(o[1], "a")
        + values(o[2], "b")
        + values(o[3], "c", "float")
        + f"emulator::mma_m16n8k16({flag('bf16' in op)}, destinations, a, b, c);"
    )


def mma_f8(op: str, o: list[str]) -> str:
    """mma.sync m16n8k32 of 8-bit elements."""
    match = re.search(r"\.f32\.(e4m3|e5m2)\.(e4m3|e5m2)\.f32", op)
    if match is None:
        raise UnknownInstructionError(op)
    types = f"{flag(match[1] == 'e5m2')}, {flag(match[2] == 'e5m2')}"
    return (
        pointers(o[0])
        + values(o[1], "a")
        + values(o[2], "b")
        + values(o[3], "c", "float")
        + f"emulator::mma_m16n8k32({types}, destinations, a, b, c);"
    )


def mma_tf32(_op: str, o: list[str]) -> str:
    """mma.sync m16n8k8 of tf32."""
    return (
        pointers(o[0])
        + values(o[1], "a")
        + values(o[2], "b")
        + values(o[3], "c", "float")
        + "emulator::mma_m16n8k8_tf32(destinations, a, b, c);"
    )


def ldmatrix(op: str, o: list[str]) -> str:
    """ldmatrix, as it is or transposed."""
    arguments = f"{len(items(o[0]))}, {flag('.trans' in op)}, {address(o[1])}"
    return pointers(o[0], "unsigned") + f"emulator::ldmatrix(destinations, {arguments});"


def stmatrix(op: str, o: list[str]) -> str:
    """stmatrix, as it is or transposed."""
    arguments = f"{len(items(o[1]))}, {flag('.trans' in op)}, {address(o[0])}"
    return values(o[1], "sources") + f"emulator::stmatrix(sources, {arguments});"


def mbarrier_arrive(op: str, o: list[str]) -> str:
    """mbarrier.arrive of this block's barrier, or of another's in the cluster."""
    if "remote" in op:
        raise UnknownInstructionError(op)
    return f"emulator::mbarrier_arrive({address(o[1])}, {value(o[2]) if len(o) > 2 else 1});"


def is_load(op: str) -> bool:
    """Whether a bulk copy goes from global to shared memory."""
    return re.search(r"\.shared::c\w+\.global", op) is not None


def tensor_copy(op: str, o: list[str]) -> str:
    """cp.async.bulk.tensor and cp.reduce.async.bulk.tensor."""
    load = is_load(op)
    reduction = op.startswith("cp.reduce")
    if reduction and ".add." not in op:
        raise UnknownInstructionError(op)
    tensor_map, at = items(o[1] if load else o[0])
    code = values(at, "at", "int")
    rank = len(items(at))
    if load:
        arguments = f"{address(o[0])}, {value(tensor_map)}, at, {rank}, {address(o[2])}"
        return f"{code}emulator::tma_load({arguments});"
    arguments = f"{value(tensor_map)}, {address(o[1])}, at, {rank}, {flag(reduction)}"
    return f"{code}emulator::tma_store({arguments});"


def bulk_copy(op: str, o: list[str]) -> str:
    """cp.async.bulk and cp.reduce.async.bulk."""
    reduction = op.startswith("cp.reduce")
    if reduction and ".add.f32" not in op:
        raise UnknownInstructionError(op)
    arguments = f"{address(o[0])}, {address(o[1])}, {value(o[2])}"
    if is_load(op):
        return f"emulator::bulk_load({arguments}, {address(o[3])});"
    return f"emulator::bulk_store({arguments}, {flag(reduction)});"


def cp_async(op: str, o: list[str]) -> str:
    """cp.async of 4, 8 or 16 bytes, or fewer and zeros."""
    read = value(o[3] if len(o) > 3 else o[2])
    return f"emulator::cp_async({address(o[0])}, {address(o[1])}, {value(o[2])}, {read});"


def barrier(op: str, o: list[str]) -> str:
    """bar.sync, bar.arrive."""
    name = "barrier_arrive" if "arrive" in op else "barrier_sync"
    return f"emulator::{name}({value(o[0])}, {value(o[1]) if len(o) > 1 else 0});"


def element(op: str) -> str:
    """The type of C++ that the end of the instruction names."""
    return TYPES[op.split(".")[-1]]


def vector(kind: str, count: int) -> str:
    """Declares Vector."""
    return f"struct alignas(sizeof({kind}) * {count}) Vector {{ {kind} v[{count}]; }}; "


def load_shared(op: str, o: list[str]) -> str:
    """ld.shared."""
    kind, to = element(op), items(o[0])
    if len(to) == 1:
        return f"{value(to[0])} = emulator::load_shared<{kind}>({address(o[1])});"
    stored = " ".join(f"{value(item)} = loaded.v[{i}];" for i, item in enumerate(to))
    load = f"const Vector loaded = emulator::load_shared<Vector>({address(o[1])}); "
    return vector(kind, len(to)) + load + stored


def store_shared(op: str, o: list[str]) -> str:
    """st.shared."""
    kind, stored = element(op), items(o[1])
    listed = ", ".join(f"({kind}){value(item)}" for item in stored)
    if len(stored) == 1:
        return f"emulator::store_shared<{kind}>({address(o[0])}, {listed});"
    store = f"emulator::store_shared<Vector>({address(o[0])}, Vector{{{{{listed}}}}});"
    return vector(kind, len(stored)) + store


def store_async(op: str, o: list[str]) -> str:
    """st.async, which counts its bytes at an mbarrier."""
    kind, stored = element(op), items(o[1])
    listed = ", ".join(f"({kind}){value(item)}" for item in stored)
    return (
        f"const {kind} stored[] = {{{listed}}}; "
        f"emulator::store_async({address(o[0])}, stored, sizeof stored, {address(o[2])});"
    )


def load_global(op: str, o: list[str]) -> str:
    """ld.global. Loads that may poll let others run first."""
    polls = any(word in op.split(".") for word in ("acquire", "volatile", "relaxed"))
    place = f"(({element(op)}*)({address(o[1])}))"
    loads = (f"{value(item)} = {place}[{i}];" for i, item in enumerate(items(o[0])))
    return ("emulator::poll(); " if polls else "") + " ".join(loads)


def store_global(op: str, o: list[str]) -> str:
    """st.global and red.global.add."""
    place = f"(({element(op)}*)({address(o[0])}))"
    operator = "+=" if op.startswith("red") else "="
    stores = (f"{place}[{i}] {operator} {value(item)};" for i, item in enumerate(items(o[1])))
    return " ".join(stores)


def move(op: str, o: list[str]) -> str:
    """mov: of special registers, and between a register and a list of its halves."""
    if "globaltimer" in o[1] or "clock64" in o[1]:
        return f"{value(o[0])} = emulator::timer();"
    if "cluster_ctarank" in o[1]:
        return f"{value(o[0])} = emulator::cluster_rank();"
    if "cluster_nctaid" in o[1]:
        return f"{value(o[0])} = emulator::cluster_blocks();"
    half, width = ("unsigned short", 16) if op == "mov.b32" else ("unsigned", 32)
    if o[0].startswith("{"):
        low, high = items(o[0])
        source = value(o[1])
        return f"{value(low)} = ({half}){source}; {value(high)} = ({half})({source} >> {width});"
    if o[1].startswith("{"):
        low, high = items(o[1])
        kind = element(op)
        return f"{value(o[0])} = ({kind}){value(low)} | ({kind}){value(high)} << {width};"
    return f"{value(o[0])} = {value(o[1])};"


def function(name: str) -> Callable[[str, list[str]], str]:
    """A call with every operand but the first, which takes the result."""

    def call(_op: str, o: list[str]) -> str:
        return f"{value(o[0])} = emulator::{name}({', '.join(value(x) for x in o[1:])});"

    return call


def nothing(_op: str, _o: list[str]) -> str:
    """An instruction that needs no emulation."""
    return ";"


# The first pattern that matches the beginning of an instruction decides.
GROUPS: tuple[tuple[str, Callable[[str, list[str]], str]], ...] = (
    (r"wgmma\.mma_async", wgmma_mma),
    (r"wgmma\.fence", lambda op, o: "emulator::wgmma_fence();"),
    (r"wgmma\.commit", lambda op, o: "emulator::wgmma_commit();"),
    (r"wgmma\.wait", lambda op, o: f"emulator::wgmma_wait({value(o[0])});"),
    (r"mma\.sync\.aligned\.m16n8k16", mma),
    (r"mma\.sync\.aligned\.m16n8k32", mma_f8),
    (r"mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.tf32", mma_tf32),
    (r"ldmatrix", ldmatrix),
    (r"stmatrix", stmatrix),
    (
        r"mbarrier\.init",
        lambda op, o: f"emulator::mbarrier_init({address(o[0])}, {value(o[1])});",
    ),
    (
        r"mbarrier\.arrive\.expect_tx",
        lambda op, o: f"emulator::mbarrier_expect({address(o[1])}, {value(o[2])}, true);",
    ),
    (
        r"mbarrier\.expect_tx",
        lambda op, o: f"emulator::mbarrier_expect({address(o[0])}, {value(o[1])}, false);",
    ),
    (r"mbarrier\.arrive", mbarrier_arrive),
    (
        r"mbarrier\.(try|test)_wait\.parity",
        lambda op, o: (f"{value(o[0])} = emulator::mbarrier_wait({address(o[1])}, {value(o[2])});"),
    ),
    (r"fence\.proxy\.async", lambda op, o: "emulator::fence_proxy_async();"),
    (r"setmaxnreg", lambda op, o: f"emulator::set_registers({value(o[0])});"),
    (r"fence\.|membar|griddepcontrol|prefetch|discard", nothing),
    (r"cp\.(reduce\.)?async\.bulk\.tensor", tensor_copy),
    (r"cp\.async\.bulk\.commit_group", lambda op, o: "emulator::bulk_commit();"),
    (
        r"cp\.async\.bulk\.wait_group",
        lambda op, o: f"emulator::bulk_wait({value(o[0])}, {flag('.read' in op)});",
    ),
    (r"cp\.(reduce\.)?async\.bulk", bulk_copy),
    (r"cp\.async\.(commit_group|wait_group|wait_all)", nothing),
    (r"cp\.async\.c", cp_async),
    (r"barrier\.cluster\.wait", lambda op, o: "emulator::sync_cluster();"),
    (r"barrier\.cluster", nothing),
    (r"bar(rier)?\.(sync|arrive)", barrier),
    (r"ld\.shared", load_shared),
    (r"st\.shared", store_shared),
    (r"st\.async", store_async),
    (r"ld\.(global|acquire|relaxed|volatile)", load_global),
    (r"st\.(global|release|relaxed)|red\.(\w+\.)*global\.(\w+\.)*add", store_global),
    (r"ex2\.approx\.ftz\.f32$", function("ex2")),
    (r"lg2\.approx\.ftz\.f32$", function("lg2")),
    (r"rcp\.approx\.ftz\.f32$", function("rcp")),
    (r"tanh\.approx\.f32$", function("tanh_approx")),
    (r"min\.NaN\.f32$", function("min_nan")),
    (r"max\.NaN\.f32$", function("max_nan")),
    (r"cvt\.rn\.bf16x2\.f32$", function("pack_bf16")),
    (r"cvt\.rn\.f16x2\.f32$", function("pack_f16")),
    (r"cvt\.rn\.f16x2\.e4m3x2$", function("e4m3x2_to_f16x2")),
    (r"cvt\.rn\.satfinite\.e4m3x2\.f32$", function("pack_e4m3")),
    (r"prmt\.b32$", function("permute_bytes")),
    (r"cvt\.rna\.tf32\.f32$", function("round_to_tf32")),
    (r"cvt\.f32\.f16$", function("f16_to_f32")),
    (r"sub\.f16x2$", function("sub_f16x2")),
    (r"sub\.sat\.f16x2$", function("sub_sat_f16x2")),
    (r"fma\.rn\.bf16x2$", function("fma_bf16x2")),
    (r"mul\.f16x2$", function("mul_f16x2")),
    (
        r"mul\.wide\.u32$",
        lambda op, o: f"{value(o[0])} = (unsigned long long){value(o[1])} * {value(o[2])};",
    ),
    (r"setp\.ne\.b32$", lambda op, o: f"{value(o[0])} = {value(o[1])} != {value(o[2])};"),
    (r"mapa\.", function("map_shared")),
    (r"mov\.", move),
)


def instruction(op: str, operands: list[str]) -> str:
    """One PTX instruction in C++."""
    for pattern, translate in GROUPS:
        if re.match(pattern, op):
            return translate(op, operands)
    raise UnknownInstructionError(f"{op} {', '.join(operands)}")
