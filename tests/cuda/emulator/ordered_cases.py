"""Deterministic backwards under a causal mask. On the emulator's two multiprocessors the last head
has its tiles in reverse order (kv_heads_reversed), the others have not."""

BACKWARD = (
    ("", "heads_q=4 heads_kv=2 len_q=300 len_kv=520 dim_qk=128 dim_vo=128 causal deterministic"),
    ("", "heads_q=3 heads_kv=3 len_q=430 len_kv=390 dim_qk=64 dim_vo=64 causal deterministic"),
    ("", "heads_q=4 heads_kv=2 len_q=200 len_kv=330 dim_qk=256 dim_vo=256 causal deterministic"),
    (
        "",
        "heads_q=2 heads_kv=2 len_q=330 len_kv=200 dim_qk=192 dim_vo=128 causal"
        " diagonal=top_left deterministic",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 layout_q=packed layout_kv=packed len_q=264 len_kv=336"
        " dim_qk=64 dim_vo=64 causal deterministic",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 len_q=164 len_kv=236 dim_qk=256 dim_vo=256"
        " lengths_q lengths_kv causal deterministic",
    ),
    (
        "",
        "batch=2 heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=128 dim_vo=128 mask=bqk"
        " causal deterministic accumulate",
    ),
)
