// Constants of kernels that keep neither K nor V in workgroup memory.

const KEPT_AT = 0u;  // K and V come anew for each tile
const KEPT_QK = 0u;
const KEPT_VO = 0u;
