// enable subgroups
// probe: the subgroups of this device. Each thread of a few workgroups writes its subgroup's size, its lane,
// and the first and last local index of its subgroup.
// Grid: (workgroups, 1, 1), 128 threads each.

struct ProbeParameters {
  num_threads: u32,  // of the whole grid
}

@group(0) @binding(0) var<uniform> parameters: ProbeParameters;
@group(0) @binding(1) var<storage, read_write> seen: array<vec4<u32>>;

@compute @workgroup_size(128)
fn probe(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) group: vec3<u32>,
         @builtin(subgroup_size) size: u32, @builtin(subgroup_invocation_id) lane: u32) {
  let first = subgroupMin(local);
  let last = subgroupMax(local);
  let thread = group.x * 128u + local;
  if (thread < parameters.num_threads) {
    seen[thread] = vec4<u32>(size, lane, first, last);
  }
}
