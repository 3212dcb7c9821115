#!/bin/sh
# Fails when the shared library exports anything but attn_* and the public names of namespace attn.
# usage: exports.sh <nm> <library>
set -eu
names=$("$1" -D --defined-only "$2" | awk '{print $NF}')
echo "$names" | grep -q '^attn_forward$' || { echo "attn_forward is not exported"; exit 1; }
echo "$names" | grep -q '^_ZN4attn7forwardE' || { echo "attn::forward is not exported"; exit 1; }
# Nested names of the public API are those of its classes with functions outside the headers, and of
# attn::webgpu those of its header.
others=$(echo "$names" | grep -vE '^attn_[a-z_0-9]+$|^_ZNK?4attn(7Context([CD][0-9]|7threadsE)|10TensorView|5Error)|^_ZN4attn[0-9]+[a-z_]+(B5cxx11)?E|^_ZNK?4attn6webgpu(9Recording|5adoptE|8describeB5cxx11E)|^_ZT[ISV]N4attn5ErrorE$' || true)
inner=$(echo "$names" | grep -E '4attn(4core|3api|3cpu|4cuda|6webgpu|9reference)' |
  grep -vE '^_ZNK?4attn6webgpu(9Recording|5adoptE|8describeB5cxx11E)' || true)
if [ -n "$others$inner" ]; then
  echo "exported, but not public:"
  echo "$others$inner"
  exit 1
fi
