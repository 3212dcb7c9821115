"""Backwards with key ranges, where some tiles of queries see one tile of keys alone, so that its
consumers write dq, and the first block of other tiles stores its dQ. Documents of the harness have
up to 96 keys. Tiles have 128 keys and 128 queries, 64 above dim 64."""

BACKWARD = (
    # The first tile of queries sees one tile of keys, the others two.
    ("", "batch=2 heads_q=1 heads_kv=1 len_q=392 len_kv=392 dim_qk=64 dim_vo=64 causal kv_begin"),
    # Every tile sees one, as documents that begin and end with tiles do: a query sees its own key.
    (
        "",
        "heads_q=2 heads_kv=1 len_q=392 len_kv=392 dim_qk=64 dim_vo=64 window_left=0 causal kv_end",
    ),
    ("", "heads_q=2 heads_kv=2 len_q=330 len_kv=120 dim_qk=40 dim_vo=64 kv_begin kv_end"),
    # Several, in every tile but one.
    (
        "",
        "heads_q=4 heads_kv=2 len_q=300 len_kv=520 dim_qk=64 dim_vo=64 kv_end deterministic",
    ),
    # Queries without keys, and whole tiles of them.
    (
        "ranges=empty",
        "heads_q=4 heads_kv=2 len_q=300 len_kv=520 dim_qk=64 dim_vo=64 kv_begin kv_end",
    ),
    ("", "heads_q=2 heads_kv=1 len_q=600 len_kv=264 dim_qk=64 dim_vo=32 causal kv_begin"),
    (
        "ranges=empty",
        "heads_q=2 heads_kv=2 len_q=520 len_kv=130 dim_qk=128 dim_vo=64 causal kv_begin kv_end"
        " deterministic",
    ),
    (
        "ranges=random",
        "heads_q=2 heads_kv=1 len_q=264 len_kv=264 dim_qk=64 dim_vo=64 kv_begin kv_end",
    ),
    # Tiles of 64 queries; above 1024 keys the sums are zeroed.
    ("", "batch=2 heads_q=2 heads_kv=1 len_q=300 len_kv=300 dim_qk=128 dim_vo=128 kv_begin kv_end"),
    ("", "heads_q=1 heads_kv=1 len_q=200 len_kv=1100 dim_qk=96 dim_vo=128 kv_begin kv_end"),
    # With other options.
    (
        "softcap=5",
        "heads_q=2 heads_kv=1 len_q=264 len_kv=264 dim_qk=64 dim_vo=64 causal kv_begin softcap",
    ),
    (
        "",
        "heads_q=2 heads_kv=1 len_q=264 len_kv=264 dim_qk=64 dim_vo=64 causal kv_begin dropout",
    ),
    (
        "",
        "heads_q=2 heads_kv=1 len_q=264 len_kv=264 dim_qk=128 dim_vo=128 kv_begin alibi",
    ),
    (
        "",
        "heads_q=2 heads_kv=1 len_q=264 len_kv=264 dim_qk=64 dim_vo=64 kv_begin alibi dropout",
    ),
    (
        "",
        "heads_q=2 heads_kv=2 len_q=272 len_kv=272 dim_qk=64 dim_vo=64 bias=hqk dtype_bias=bf16"
        " mask=hqk causal kv_begin dbias",
    ),
    # dq is added to sums that were zeroed.
    (
        "",
        "heads_q=2 heads_kv=1 len_q=264 len_kv=264 dim_qk=64 dim_vo=64 causal kv_begin"
        " dtype_grad=f32",
    ),
    (
        "",
        "heads_q=2 heads_kv=1 len_q=264 len_kv=264 dim_qk=64 dim_vo=64 causal kv_begin accumulate",
    ),
    (
        "",
        "heads_q=2 heads_kv=1 len_q=264 len_kv=264 dim_qk=64 dim_vo=64 causal kv_begin"
        " nonfinite_zero",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 layout_q=packed layout_kv=packed len_q=264 len_kv=336"
        " dim_qk=64 dim_vo=64 kv_begin kv_end",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=64 dim_vo=64 lengths_q"
        " lengths_kv kv_begin kv_end",
    ),
)
