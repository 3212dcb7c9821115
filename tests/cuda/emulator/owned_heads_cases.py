"""Backwards whose blocks own heads: on a device of two multiprocessors, which 3 or 4 heads fill."""

BACKWARD = (
    ("", "heads_q=4 heads_kv=4 len_q=512 len_kv=512 dim_qk=64 dim_vo=64 causal"),
    ("", "heads_q=3 heads_kv=3 len_q=330 len_kv=450 dim_qk=64 dim_vo=64"),
    ("", "batch=2 heads_q=2 heads_kv=2 len_q=203 len_kv=301 dim_qk=40 dim_vo=56 causal dlse"),
    # One tile of queries in every step; keys without queries.
    ("", "batch=3 heads_q=2 heads_kv=2 len_q=50 len_kv=490 dim_qk=64 dim_vo=64 sink"),
    ("", "heads_q=4 heads_kv=4 len_q=64 len_kv=400 dim_qk=64 dim_vo=64 causal diagonal=top_left"),
    ("", "heads_q=4 heads_kv=4 len_q=400 len_kv=500 dim_qk=64 dim_vo=64 window_left=60 causal"),
    (
        "scale=-2",
        "heads_q=2 heads_kv=2 len_q=500 len_kv=500 dim_qk=64 dim_vo=32 window_left=30"
        " window_right=150",
    ),
    ("", "heads_q=2 heads_kv=2 len_q=200 len_kv=260 dim_qk=64 dim_vo=64 causal delta"),
    (
        "",
        "heads_q=2 heads_kv=2 len_q=260 len_kv=200 dim_qk=48 dim_vo=64 dtype_grad=f32"
        " nonfinite_zero deterministic",
    ),
    (
        "softcap=5",
        "heads_q=4 heads_kv=4 len_q=264 len_kv=336 dim_qk=64 dim_vo=64 softcap alibi causal",
    ),
    ("", "heads_q=4 heads_kv=4 len_q=264 len_kv=336 dim_qk=64 dim_vo=64 dropout"),
    (
        "softcap=5",
        "heads_q=4 heads_kv=4 len_q=264 len_kv=336 dim_qk=64 dim_vo=64 softcap dropout alibi",
    ),
)
