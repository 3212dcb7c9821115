"""One architecture of the zoo: a tiny random model with libattn against the same one with eager.

The outcome is one of

    equal         logits and gradients of real tokens, generated tokens and causality agree
    refused       libattn says why it doesn't compute this model, before the first wrong number
    no attention  eager and libattn agree, and no layer called the attention interface
    not built     no tiny model, with the reason
    wrong         anything else; the zoo fails
"""

from __future__ import annotations

import copy
import sys
import warnings
from dataclasses import asdict, dataclass, field
from typing import Any

import libattn
import libattn.hf
import torch
import transformers
from libattn.hf import _models
from torch import Tensor
from zoo import build, inputs
from zoo.exceptions import REFERENCES

LOGITS = 1e-4  # largest difference, over the largest logit
GRADIENTS = 1e-3  # in each parameter, over its largest gradient or a tenth of the model's
INFLUENCE = 1e-3  # the least change of logits when attention's output is 0
NEW_TOKENS = 8
WITHOUT = "zoo_without_attention"


@dataclass
class Row:
    """The results of one architecture. Numbers are the largest over all runs."""

    model: str
    kind: str
    outcome: str = "equal"
    reason: str = ""
    heads: list[int] = field(default_factory=list)  # empty: the default config
    padding: list[str] = field(default_factory=list)
    logits: float = 0.0
    gradients: float = 0.0
    generate: bool = False
    causal: bool = False
    calls: int = 0


class Wrong(Exception):
    """A difference above its tolerance."""


class NoAttention(Exception):
    """No layer calls the attention interface, and the logits are eager's."""


def refusal(error: BaseException) -> bool:
    """Whether libattn raised this error on purpose, to refuse a model."""
    return isinstance(error, libattn.Unsupported) or str(error).startswith("libattn.hf: ")


def prepare() -> None:
    """Registers libattn in transformers, and a version of it that returns 0."""
    from libattn.hf._attention import attention_forward

    def without(*arguments: Any, **options: Any) -> tuple[Tensor, None]:
        return attention_forward(*arguments, **options)[0] * 0, None

    libattn.hf.register()
    libattn.hf.register(WITHOUT)
    transformers.AttentionInterface.register(WITHOUT, without)
    transformers.logging.set_verbosity_error()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)


def logits_of(output: Any) -> Tensor:
    """The logits, or the first floating tensor of a result that has none."""
    found = getattr(output, "logits", None)
    if found is None:
        found = next(one for one in output.to_tuple() if isinstance(one, Tensor))
    return found


def run(
    model: Any, given: inputs.Inputs, gradients: bool = False
) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits at the real positions and the gradients of a random linear loss on them."""
    torch.manual_seed(3)
    model.zero_grad()
    with torch.set_grad_enabled(gradients):
        logits = logits_of(model(**given.arguments))
    logits = logits[inputs.real_positions(given, logits)]
    if not gradients:
        return logits, {}
    torch.manual_seed(4)
    (logits * torch.randn_like(logits)).sum().backward()
    parameters = model.named_parameters()
    found = {name: one.grad for name, one in parameters if one.grad is not None and one.numel()}
    return logits.detach(), found


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference over the largest expected value; 1 if any value is not finite."""
    if found.shape != expected.shape:
        raise Wrong(f"shapes {list(found.shape)} and {list(expected.shape)}")
    if not bool(expected.isfinite().all() & found.isfinite().all()):
        return 1.0
    return float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-20))


def gradient_difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest difference of a parameter's gradient, relative as GRADIENTS says."""
    if found.keys() != expected.keys():
        raise Wrong(f"gradients of other parameters: {sorted(found.keys() ^ expected.keys())[:3]}")
    largest = max(float(one.abs().max()) for one in expected.values())
    worst = 0.0
    for name, gradient in expected.items():
        scale = max(float(gradient.abs().max()), 0.1 * largest, 1e-20)
        one = float((found[name] - gradient).abs().max()) / scale
        if not one <= worst:  # also NaN
            worst = one
    return worst


def generated(model: Any, given: inputs.Inputs) -> Any:
    """Greedy generation of NEW_TOKENS tokens."""
    arguments = {k: v for k, v in given.arguments.items() if not k.startswith("decoder_")}
    torch.manual_seed(5)
    return model.generate(
        **arguments,
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        do_sample=False,
        num_beams=1,
        output_logits=True,
        return_dict_in_generate=True,
    )


def compare_generated(eager: Any, ours: Any, given: inputs.Inputs) -> bool:
    """Whether eager generates; raises Wrong where libattn generates something else."""
    try:
        expected = generated(eager, given)
        steps = expected.logits
    except Exception as error:
        print(f"{type(eager).__name__}: eager doesn't generate: {error!r:.300}", file=sys.stderr)
        return False
    found = generated(ours, given)
    for step, (one, other) in enumerate(zip(found.logits, steps, strict=True)):
        apart = difference(one, other)
        if not apart <= LOGITS:
            raise Wrong(f"logits of generated token {step} differ by {apart:.1e}")
        if not torch.equal(one.argmax(-1), other.argmax(-1)):
            top = other.topk(2).values
            if bool(((top[:, 0] - top[:, 1]) > LOGITS * other.abs().max()).all()):
                raise Wrong(f"generated token {step} differs")
            return True  # a tie within rounding: later tokens may differ
    return True


def is_causal(model: Any, given: inputs.Inputs) -> bool:
    """Whether the earlier logits stay the same if the last token changes."""
    name = given.tokens
    changed = dict(given.arguments)
    changed[name] = changed[name].clone()
    changed[name][:, -1] = (changed[name][:, -1] + 1 - 10) % 60 + 10
    with torch.no_grad():
        before = logits_of(model(**given.arguments))
        after = logits_of(model(**changed))
    length = changed[name].shape[1]
    if before.ndim != 3 or before.shape[1] != length or torch.equal(before[:, -1], after[:, -1]):
        return False
    return difference(after[:, : length - 1], before[:, : length - 1]) <= 1e-5


def copy_weights(source: torch.nn.Module, target: torch.nn.Module) -> None:
    """Parameters and all buffers."""
    with torch.no_grad():
        for kind in ("named_parameters", "named_buffers"):
            values = dict(getattr(source, kind)())
            for name, one in getattr(target, kind)():
                one.copy_(values[name])


def eager_model(row: Row, model_class: type, heads: int) -> tuple[Any, Any, Tensor, bool]:
    """(config, model, its logits, whether the config is tiny).

    A model whose tiny config doesn't work gets its default config, if that is small.
    """
    reference = REFERENCES.get(row.model, ("eager",))[0]
    reasons = []
    for tiny in (True, False):
        try:
            if tiny:
                config = build.tiny_config(model_class, row.kind, heads)
            else:
                config = build.default_config(model_class)
            model = build.make(model_class, config, reference)
            build.spread(model)
            logits, _ = run(model, inputs.make(model, row.kind, "none"))
            return config, model, logits, tiny
        except Exception as error:
            if isinstance(error, build.NotBuilt) and tiny:
                raise
            name = "" if isinstance(error, build.NotBuilt) else f"{type(error).__name__}: "
            reasons.append(name + " ".join(str(error).split())[-160:])
    raise build.NotBuilt(f"tiny config: {reasons[0]}; default config: {reasons[1]}")


def check_heads(row: Row, model_class: type, heads: int) -> None:
    """Compares one model; raises Wrong, NoAttention, NotBuilt or a refusal."""
    try:
        config, eager, plain, tiny = eager_model(row, model_class, heads)
    except build.NotBuilt:
        _models.check_class(model_class)  # refused whatever its config is
        raise
    given = inputs.make(eager, row.kind, "none")
    refused = None
    try:
        constructed = build.make(model_class, config, "libattn")
    except Exception as error:
        if not refusal(error):
            raise
        refused = error
    ours = copy.deepcopy(eager)
    ours.set_attn_implementation("libattn")
    with libattn.hf.record() as calls:
        found, _ = run(ours, given)
    row.logits = max(row.logits, difference(found, plain))
    if not row.logits <= LOGITS:
        raise Wrong(f"logits differ by {row.logits:.1e}")
    if refused is not None:
        raise refused
    copy_weights(eager, constructed)
    with libattn.hf.record() as constructed_calls:
        found, _ = run(constructed, given)
    if not difference(found, plain) <= LOGITS:
        raise Wrong("by the constructor, logits differ")
    if not calls and ours.config._attn_implementation == "eager":
        ours, calls = constructed, constructed_calls  # transformers warned and kept eager
    if len(calls) != len(constructed_calls):
        raise Wrong("other layers call libattn by the constructor than by set_attn_implementation")
    if not calls:
        raise NoAttention
    row.calls = len(calls)
    nothing = build.make(model_class, config, WITHOUT)
    copy_weights(eager, nothing)
    without, _ = run(nothing, given)
    if difference(without, plain) < INFLUENCE:
        raise Wrong("attention has no influence on the logits: the comparison shows nothing")
    for padding in given.paddings:
        compare_step(row, eager, ours, padding)
    if row.kind in ("causal", "seq2seq", "audio") and eager.can_generate():
        sides = ("none", "left") if "left" in given.paddings else ("none",)
        done = [
            compare_generated(eager, ours, inputs.make(eager, row.kind, side)) for side in sides
        ]
        row.generate = all(done)
    if given.tokens is not None and row.kind != "masked":
        row.causal = is_causal(eager, given)
        if row.causal and not is_causal(ours, given):
            raise Wrong("a later token changes earlier logits")
    if tiny:
        row.heads.append(heads)


def compare_step(row: Row, eager: Any, ours: Any, padding: str) -> None:
    """Logits and gradients of one step."""
    given = inputs.make(eager, row.kind, padding)
    try:
        expected, expected_gradients = run(eager, given, gradients=True)
    except Exception as error:
        if padding == "none":
            raise
        print(f"{row.model}: eager, padding {padding}: {error!r:.300}", file=sys.stderr)
        return  # eager does not support this padding
    if padding != "none" and not bool(expected.isfinite().all()):
        print(f"{row.model}: eager isn't finite, padding {padding}", file=sys.stderr)
        return
    found, gradients = run(ours, given, gradients=True)
    apart = difference(found, expected)
    row.logits = max(row.logits, apart)
    if not apart <= LOGITS:
        raise Wrong(f"logits differ by {apart:.1e}, padding {padding}")
    apart = gradient_difference(gradients, expected_gradients)
    row.gradients = max(row.gradients, apart)
    if not apart <= GRADIENTS:
        raise Wrong(f"gradients differ by {apart:.1e}, padding {padding}")
    if padding not in row.padding:
        row.padding.append(padding)


def check(name: str, kind: str) -> dict[str, Any]:
    """The row of one architecture."""
    row = Row(name, kind)
    try:
        for heads in (2, 4):
            check_heads(row, build.model_class(name), heads)
            if not row.heads:
                break  # the default config: no number of heads to choose
    except build.NotBuilt as error:
        row.outcome, row.reason = "not built", str(error)
    except NoAttention:
        row.outcome = "no attention"
    except Exception as error:
        row.outcome = "refused" if refusal(error) else "wrong"
        name = "" if isinstance(error, Wrong | libattn.Unsupported) else f"{type(error).__name__}: "
        row.reason = name + " ".join(str(error).split())[:300]
    row.logits, row.gradients = (float(f"{one:.1e}") for one in (row.logits, row.gradients))
    return asdict(row)
