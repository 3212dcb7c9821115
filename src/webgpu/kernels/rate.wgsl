// rate: measures the peak rate of fused multiply-adds in f32. Each thread runs 4 chains of vec4 that
// depend on each other as little as possible, so that latency does not limit the rate.
// Grid: (workgroups, 1, 1), 256 threads each.

struct RateParameters {
  steps: u32,
}

@group(0) @binding(0) var<uniform> parameters: RateParameters;
@group(0) @binding(1) var<storage, read_write> result: array<f32>;

@compute @workgroup_size(256)
fn rate(@builtin(local_invocation_index) thread: u32) {
  let x = vec4(0.5 + f32(thread) / 1024.0);
  var a = vec4(1.0, 2.0, 3.0, 4.0);
  var b = a + 4.0;
  var c = a + 8.0;
  var d = a + 12.0;
  for (var step = 0u; step < parameters.steps; step += 1u) {
    for (var n = 0u; n < 4u; n += 1u) {  // unrolled
      a = fma(a, x, b);
      b = fma(b, x, c);
      c = fma(c, x, d);
      d = fma(d, x, a);
    }
  }
  let sum = dot(a + b + c + d, vec4(1.0, 2.0, 3.0, 4.0));
  if (sum == 1.25) {  // never true, but the compiler cannot know
    result[0] = sum;
  }
}
