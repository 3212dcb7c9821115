// Constants of logarithms, and the bits of -inf.
const kLog2E = 1.44269504;
const kLn2 = 0.69314718;
const kEmpty = 0xff800000u;  // bits of -inf
