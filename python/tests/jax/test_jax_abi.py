"""Compares src/api/xla_abi.hpp with the header that jaxlib ships: sizes, offsets and constants."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

jax = pytest.importorskip("jax", minversion="0.6")

OURS = Path(__file__).parents[3] / "src" / "api" / "xla_abi.hpp"
COMPILER = shutil.which(os.environ.get("CXX", "c++"))
pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to ask"),
    pytest.mark.skipif(not OURS.exists(), reason="the sources are not next to these tests"),
]

# Our struct -> XLA's struct, and XLA's names of the fields that have other names there.
STRUCTS = {
    "Extension": ("XLA_FFI_InternalExtension|XLA_FFI_Extension_Base", {}),
    "Version": ("XLA_FFI_Api_Version", {"major": "major_version", "minor": "minor_version"}),
    "Metadata": ("XLA_FFI_Metadata", {"version": "api_version"}),
    "MetadataExtension": ("XLA_FFI_Metadata_Extension", {"base": "extension_base"}),
    "Text": ("XLA_FFI_ByteSpan", {"data": "ptr", "size": "len"}),
    "Scalar": ("XLA_FFI_Scalar", {}),
    "Buffer": ("XLA_FFI_Buffer", {}),
    "Buffers": ("XLA_FFI_Args", {"items": "args"}),
    "Attributes": ("XLA_FFI_Attrs", {"items": "attrs"}),
    "ErrorArguments": ("XLA_FFI_Error_Create_Args", {"code": "errc"}),
    "StreamArguments": ("XLA_FFI_Stream_Get_Args", {}),
    "AllocateArguments": ("XLA_FFI_DeviceMemory_Allocate_Args", {}),
    "FreeArguments": ("XLA_FFI_DeviceMemory_Free_Args", {}),
    "OrdinalArguments": ("XLA_FFI_DeviceOrdinal_Get_Args", {"ordinal": "device_ordinal"}),
    "DestroyArguments": ("XLA_FFI_Error_Destroy_Args", {}),
    "Api": (
        "XLA_FFI_Api",
        {
            "version": "api_version",
            "create_error": "XLA_FFI_Error_Create",
            "destroy_error": "XLA_FFI_Error_Destroy",
            "get_stream": "XLA_FFI_Stream_Get",
            "allocate": "XLA_FFI_DeviceMemory_Allocate",
            "free": "XLA_FFI_DeviceMemory_Free",
            "get_ordinal": "XLA_FFI_DeviceOrdinal_Get",
        },
    ),
    "CallFrame": (
        "XLA_FFI_CallFrame",
        {"arguments": "args", "results": "rets", "attributes": "attrs"},
    ),
}
ENUMS = {
    "ErrorCode": "XLA_FFI_Error_Code_",
    "DataType": "XLA_FFI_DataType_",
    "ArgumentType": "XLA_FFI_ArgType_",
    "AttributeType": "XLA_FFI_AttrType_",
    "Stage": "XLA_FFI_ExecutionStage_",
}


def fields_of(text, struct):
    """The fields of one of our structs that XLA has too. Untyped addresses are placeholders."""
    body = re.search(rf"struct {struct} {{(.*?)\n}};", text, re.DOTALL)[1]
    body = re.sub(r"//.*", "", body)
    found = []
    for row in filter(None, map(str.strip, body.split(";"))):
        if struct != "Api" or not row.startswith("const void*"):
            name = re.search(r"\(\*(\w+)\)|(\w+)$", row)
            found.append(name[1] or name[2])
    return found


def theirs(name, header):
    """The first of these names that occurs in the header: names differ between versions."""
    return next(one for one in name.split("|") if re.search(rf"\b{one}\b", header))


def test_structs_and_numbers(tmp_path):
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_text()
    ours = OURS.read_text()
    checks = []
    for struct, (name, renamed) in STRUCTS.items():
        other = theirs(name, header)
        for field in fields_of(ours, struct):
            their_field = renamed.get(
                field, {"extension": "extension_start", "context": "ctx"}.get(field, field)
            )
            checks.append(f"offsetof(xla::{struct}, {field}) == offsetof({other}, {their_field})")
            checks.append(
                f"sizeof(xla::{struct}::{field}) <= sizeof((({other}*)nullptr)->{their_field})"
            )
    assert len(checks) > 100
    for enum, prefix in ENUMS.items():
        body = re.search(rf"enum class {enum} : int {{(.*?)}};", ours, re.DOTALL)[1]
        for name in re.findall(r"(\w+) =", body):
            checks.append(f"int(xla::{enum}::{name}) == int({prefix}{name.upper()})")
    checks.append("int(xla::ExtensionType::metadata) == int(XLA_FFI_Extension_Metadata)")
    checks.append("xla::kMajor == XLA_FFI_API_MAJOR && xla::kMinor <= XLA_FFI_API_MINOR")
    source = tmp_path / "abi.cpp"
    source.write_text(
        f'#include "{OURS}"\n#include "xla/ffi/api/c_api.h"\nnamespace xla = attn::api::xla;\n'
        + "\n".join(f"static_assert({check}, {check!r});".replace("'", '"') for check in checks)
    )
    command = [str(COMPILER), "-std=c++20", "-fsyntax-only", "-Wno-invalid-offsetof"]
    done = subprocess.run(
        [*command, f"-I{jax.ffi.include_dir()}", str(source)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
