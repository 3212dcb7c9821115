"""Backwards whose dbias sm90/bias_gradient.cu computes."""

BACKWARD = (
    (
        "",
        "batch=3 heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=64 dim_vo=64 bias=hqk"
        " dtype_bias=bf16 dbias causal",
    ),
    (
        "",
        "batch=3 heads_q=2 heads_kv=2 len_q=336 len_kv=264 dim_qk=128 dim_vo=128 bias=hqk"
        " dtype_bias=f16 dbias causal",
    ),
    # One stage of each tile.
    (
        "",
        "batch=3 heads_q=2 heads_kv=1 len_q=264 len_kv=332 dim_qk=128 dim_vo=128 bias=hqk dbias",
    ),
    (
        "",
        "batch=6 heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=40 dim_vo=64 bias=b/3hqk"
        " dtype_bias=bf16 dbias window_left=60 window_right=20",
    ),
    # Tiles that no query sees; queries that see no key.
    (
        "",
        "batch=3 heads_q=2 heads_kv=2 len_q=300 len_kv=120 dim_qk=64 dim_vo=64 bias=hqk"
        " dtype_bias=f16 dbias causal",
    ),
    (
        "",
        "batch=2 heads_q=2 heads_kv=2 len_q=64 len_kv=520 dim_qk=64 dim_vo=128 bias=hqk"
        " dtype_bias=bf16 dbias diagonal=explicit window_left=40 window_right=3",
    ),
    # Splits: the bias broadcasts heads, or many sequences share an entry.
    (
        "scale=-2",
        "batch=4 heads_q=4 heads_kv=2 len_q=203 len_kv=312 dim_qk=96 dim_vo=80 bias=qk"
        " dtype_bias=bf16 dbias dlse",
    ),
    (
        "",
        "batch=24 heads_q=2 heads_kv=1 len_q=130 len_kv=200 dim_qk=16 dim_vo=32 bias=b/12hqk"
        " dtype_bias=f16 dbias deterministic sink",
    ),
    # A mask that broadcasts queries.
    (
        "",
        "batch=3 heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=64 dim_vo=64 bias=hqk"
        " dtype_bias=bf16 dbias mask=bk",
    ),
    (
        "",
        "batch=6 heads_q=2 heads_kv=2 len_q=200 len_kv=272 dim_qk=32 dim_vo=32 bias=b/3hqk"
        " dtype_bias=bf16 dbias mask=b/2hk causal",
    ),
    (
        "",
        "batch=24 heads_q=2 heads_kv=2 len_q=130 len_kv=208 dim_qk=64 dim_vo=96 bias=b/12hqk"
        " dtype_bias=f16 dbias mask=bk deterministic",
    ),
)
