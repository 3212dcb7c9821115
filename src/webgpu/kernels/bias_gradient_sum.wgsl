// bias_gradient_sum: adds up the parts that bias_gradient.wgsl wrote, in order, into the first.
//
// Grid: a thread for each element of a part, 64 a workgroup, in rows of 65535 workgroups.

// In elements: where the first part begins, how long a part is; how many there are.
struct Sum {
  base: u32,
  part: u32,
  parts: u32,
}

@group(0) @binding(0) var<uniform> p: Sum;
@group(0) @binding(1) var<storage, read_write> dbias: array<f32>;

@compute @workgroup_size(64)
fn bias_gradient_sum(@builtin(workgroup_id) group: vec3<u32>,
                     @builtin(local_invocation_index) thread: u32) {
  let n = (group.y * 65535u + group.x) * 64u + thread;
  if (n >= p.part) {
    return;
  }
  var sum = dbias[p.base + n];
  for (var part = 1u; part < p.parts; part += 1u) {
    sum += dbias[p.base + part * p.part + n];
  }
  dbias[p.base + n] = sum;
}
