"""The cases of cases.py with head dims above 256."""

# Forwards: O in one or two parts, stages of K that wrap, tiles that a warpgroup leaves
# out, blocks with two tiles of queries whose O is larger than Q, scores that outgrow the max.
FORWARD = (
    ("", "heads_q=2 heads_kv=1 len_q=200 len_kv=330 dim_qk=512 dim_vo=512 causal"),
    ("", "heads_q=2 heads_kv=2 len_q=264 len_kv=200 dim_qk=512 dim_vo=128 causal sink"),
    ("", "heads_q=72 heads_kv=2 len_q=70 len_kv=160 dim_qk=64 dim_vo=320 causal"),
    ("scale=30", "heads_q=1 heads_kv=1 len_q=136 len_kv=500 dim_qk=320 dim_vo=488"),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 len_q=136 len_kv=336 dim_qk=512 dim_vo=512"
        " lengths_q lengths_kv causal",
    ),
    (
        "lengths=varied softcap=5",
        "batch=3 heads_q=2 heads_kv=1 layout_q=packed layout_kv=packed len_q=164 len_kv=236"
        " dim_qk=320 dim_vo=384 softcap dropout alibi window_left=100 window_right=20",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 layout_q=packed layout_kv=packed len_q=164 len_kv=236"
        " dim_qk=384 dim_vo=512 kv_begin kv_end dtype_out=f32",
    ),
)
# Backwards by clusters of two blocks, which share the columns.
CLUSTERS = (
    ("", "heads_q=4 heads_kv=2 len_q=130 len_kv=100 dim_qk=320 dim_vo=512 causal deterministic"),
    ("", "heads_q=2 heads_kv=1 len_q=200 len_kv=330 dim_qk=512 dim_vo=512 causal"),
    (
        "",
        "heads_q=2 heads_kv=1 len_q=200 len_kv=136 dim_qk=512 dim_vo=128 bias=hqk"
        " dtype_bias=bf16 sink dsink",
    ),
    ("", "heads_q=1 heads_kv=1 len_q=200 len_kv=144 dim_qk=288 dim_vo=264 mask=qk alibi"),
    ("", "heads_q=2 heads_kv=1 len_q=72 len_kv=72 dim_qk=64 dim_vo=504 bias=k dbias accumulate"),
    (
        "lengths=varied softcap=5",
        "batch=3 heads_q=2 heads_kv=1 layout_q=packed layout_kv=packed len_q=90 len_kv=100"
        " dim_qk=512 dim_vo=264 softcap dropout window_left=40",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 layout_q=packed layout_kv=packed len_q=164 len_kv=236"
        " dim_qk=384 dim_vo=512 kv_begin kv_end",
    ),
)
# Backwards whose rows TMA cannot read: the family sm80 computes them.
BACKWARD = (
    (
        "lengths=varied",
        "batch=4 heads_q=2 heads_kv=1 len_q=70 len_kv=100 dim_qk=512 dim_vo=512 bias=b/2hqk"
        " dtype_bias=bf16 mask=b/4qk dbias lengths_q lengths_kv causal",
    ),
    ("", "heads_q=2 heads_kv=1 len_q=66 len_kv=70 dim_qk=321 dim_vo=511 bias=k dbias accumulate"),
)
