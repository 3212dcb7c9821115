"""Backwards with dropout up to dim 128: bits that a lane draws for itself and for another."""

BACKWARD = (
    ("", "heads_q=2 heads_kv=1 len_q=392 len_kv=200 dim_qk=64 dim_vo=64 dropout"),
    ("", "heads_q=2 heads_kv=2 len_q=330 len_kv=330 dim_qk=64 dim_vo=64 dropout causal"),
    (
        "",
        "heads_q=1 heads_kv=1 len_q=300 len_kv=300 dim_qk=64 dim_vo=64 dropout causal"
        " deterministic",
    ),
    ("", "batch=2 heads_q=4 heads_kv=2 len_q=203 len_kv=301 dim_qk=40 dim_vo=56 dropout alibi"),
    (
        "origin_q=48 origin_kv=16 origin_head=3",
        "heads_q=2 heads_kv=2 len_q=203 len_kv=170 dim_qk=64 dim_vo=64 dropout causal",
    ),
    (
        "",
        "heads_q=2 heads_kv=2 len_q=264 len_kv=304 dim_qk=64 dim_vo=64 dropout bias=hqk"
        " dtype_bias=bf16",
    ),
    ("softcap=5", "heads_q=2 heads_kv=1 len_q=264 len_kv=300 dim_qk=64 dim_vo=64 dropout softcap"),
    ("", "heads_q=2 heads_kv=1 len_q=264 len_kv=300 dim_qk=128 dim_vo=128 dropout causal"),
    (
        "softcap=5",
        "heads_q=2 heads_kv=1 len_q=200 len_kv=260 dim_qk=128 dim_vo=96 dropout softcap alibi",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 layout_q=packed layout_kv=packed len_q=264 len_kv=336"
        " dim_qk=64 dim_vo=64 dropout causal",
    ),
)
