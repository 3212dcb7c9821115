"""The cases of cases.py in f8."""

# Forwards in f8e4m3 and in f8e5m2; "{other}" is the type that q does not have.
FORWARD = (
    ("", "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=128 dim_vo=128"),
    ("", "heads_q=2 heads_kv=2 batch=2 len_q=264 len_kv=336 dim_qk=64 dim_vo=64 dtype_kv={other}"),
    ("", "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=256 dim_vo=256 dtype_out=f16 causal"),
    ("", "heads_q=3 heads_kv=3 len_q=520 len_kv=520 dim_qk=128 dim_vo=128 causal dtype_out=f32"),
    ("", "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=80 dim_vo=96"),
    ("", "heads_q=2 heads_kv=1 len_q=7 len_kv=336 dim_qk=48 dim_vo=32 dtype_out=f32"),
    (
        "",
        "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=256 dim_vo=256 alibi sink"
        " window_left=100",
    ),
    (
        "softcap=5",
        "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=128 dim_vo=128 softcap causal",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 layout_q=packed layout_kv=packed len_q=264 len_kv=336"
        " dim_qk=128 dim_vo=128",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 layout_q=packed layout_kv=packed len_q=264 len_kv=336"
        " dim_qk=64 dim_vo=64 causal alibi",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=256 dim_vo=256 nonfinite_zero"
        " lengths_q lengths_kv",
    ),
    ("", "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=64 dim_vo=64 kv_begin kv_end"),
    ("", "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=128 dim_vo=128 bias=bhqk mask=qk"),
    ("", "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=64 dim_vo=64 mask=bhqk causal"),
    ("scale=8", "heads_q=2 heads_kv=2 len_q=264 len_kv=512 dim_qk=128 dim_vo=128"),
    ("scale=8", "heads_q=2 heads_kv=2 len_q=264 len_kv=512 dim_qk=64 dim_vo=64 causal"),
    ("scale=30", "heads_q=2 heads_kv=2 len_q=264 len_kv=512 dim_qk=256 dim_vo=256"),
    ("", "heads_q=1 heads_kv=1 len_q=128 len_kv=16400 dim_qk=128 dim_vo=128"),
    ("", "heads_q=1 heads_kv=1 len_q=128 len_kv=16500 dim_qk=64 dim_vo=64 causal"),
)
