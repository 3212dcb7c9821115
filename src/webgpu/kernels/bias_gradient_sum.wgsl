// bias_gradient_sum: adds the parts that bias_gradient.wgsl wrote, in order, to the first part.
//
// Grid: one thread per element of a part, 64 per workgroup, in rows of 65535 workgroups.

struct PartSumParameters {
  base: u32,           // element at which the first part begins
  part_elements: u32,  // elements of a part
  parts: u32,
}

@group(0) @binding(0) var<uniform> p: PartSumParameters;
@group(0) @binding(1) var<storage, read_write> dbias: array<f32>;

@compute @workgroup_size(64)
fn bias_gradient_sum(@builtin(workgroup_id) group: vec3<u32>,
                     @builtin(local_invocation_index) thread: u32) {
  let n = (group.y * 65535u + group.x) * 64u + thread;
  if (n >= p.part_elements) {
    return;
  }
  var sum = dbias[p.base + n];
  for (var part = 1u; part < p.parts; part += 1u) {
    sum += dbias[p.base + part * p.part_elements + n];
  }
  dbias[p.base + n] = sum;
}
