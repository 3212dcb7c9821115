"""The cases of cases.py in f32."""

# Forwards in f32, with tiles that a warpgroup leaves out, elements that are not finite, and blocks
# with several tiles of queries.
FORWARD = (
    ("", "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=64 dim_vo=64"),
    ("", "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=128 dim_vo=128 causal"),
    ("", "heads_q=90 heads_kv=45 len_q=264 len_kv=130 dim_qk=64 dim_vo=64 causal"),
    ("", "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=36 dim_vo=128 alibi sink"),
    ("", "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=80 dim_vo=20 nonfinite_zero"),
    ("scale=30", "heads_q=2 heads_kv=2 len_q=264 len_kv=512 dim_qk=64 dim_vo=64"),
    ("scale=8", "heads_q=2 heads_kv=2 len_q=264 len_kv=512 dim_qk=128 dim_vo=128 causal"),
    ("planted=inf_k", "heads_q=2 heads_kv=2 len_q=200 len_kv=200 dim_qk=64 dim_vo=64"),
    ("planted=nan_q", "heads_q=2 heads_kv=2 len_q=200 len_kv=200 dim_qk=128 dim_vo=128"),
    ("planted=nan_v", "heads_q=2 heads_kv=2 len_q=200 len_kv=200 dim_qk=64 dim_vo=64"),
    (
        "softcap=5",
        "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=128 dim_vo=128 softcap causal",
    ),
    (
        "softcap=5",
        "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=64 dim_vo=64 softcap dropout alibi",
    ),
    ("", "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=128 dim_vo=128 dropout"),
    (
        "",
        "heads_q=4 heads_kv=1 len_q=164 len_kv=1024 dim_qk=64 dim_vo=64 window_left=100"
        " window_right=20",
    ),
    (
        "",
        "batch=2 heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=128 dim_vo=128 kv_begin kv_end",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=64 dim_vo=64"
        " lengths_q lengths_kv causal",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 layout_q=packed layout_kv=packed len_q=264 len_kv=336"
        " dim_qk=128 dim_vo=128 window_left=100",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 layout_q=packed layout_kv=packed len_q=264 len_kv=336"
        " dim_qk=64 dim_vo=64 kv_end",
    ),
    # Two bf16 parts.
    ("", "precision=tf32 heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=64 dim_vo=64 causal"),
    ("", "precision=tf32 heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=128 dim_vo=128"),
    (
        "planted=inf_k",
        "precision=tf32 heads_q=2 heads_kv=2 len_q=200 len_kv=200 dim_qk=64 dim_vo=64",
    ),
    (
        "softcap=5",
        "precision=tf32 heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=128 dim_vo=128 softcap"
        " dropout alibi",
    ),
    # A warpgroup whose keys end tiles before those of the other.
    ("ranges=empty", "batch=2 len_q=263 len_kv=257 dim_qk=8 dim_vo=72 kv_begin kv_end"),
    ("ranges=empty", "len_q=140 len_kv=1000 dim_qk=128 dim_vo=128 kv_begin kv_end"),
)

# Backwards, which the family sm80 computes: large tiles, rounded tiles (tf32), dK and dV by
# different warps.
BACKWARD = (
    ("", "heads_q=2 heads_kv=1 len_q=264 len_kv=200 dim_qk=64 dim_vo=64 causal"),
    ("", "precision=tf32 heads_q=2 heads_kv=1 len_q=150 len_kv=140 dim_qk=128 dim_vo=128"),
    ("", "precision=ieee len_q=150 len_kv=140 dim_qk=64 dim_vo=64 deterministic"),
    (
        "",
        "precision=tf32 heads_q=2 heads_kv=2 len_q=130 len_kv=140 dim_qk=64 dim_vo=40 bias=hqk"
        " dtype_bias=f32 dbias",
    ),
    ("planted=nan_q", "precision=tf32 len_q=100 len_kv=80 dim_qk=256 dim_vo=192"),
    ("", "len_q=70 len_kv=90 dim_qk=256 dim_vo=256 causal"),
    (
        "softcap=5",
        "precision=tf32 heads_q=2 heads_kv=1 len_q=70 len_kv=50 dim_qk=300 dim_vo=512 softcap"
        " dropout",
    ),
    (
        "",
        "heads_q=2 heads_kv=2 len_q=50 len_kv=70 dim_qk=512 dim_vo=260 bias=hqk dtype_bias=f32"
        " dbias deterministic",
    ),
)
