// The score of a hidden key: finite, because compilers may assume that infinity does not occur. No
// score of finite inputs is likely to have these bits.
const kHidden = -3.3931567e38;
