// Stands for a score that is hidden: no score of finite parts has just these bits by design.
const kHidden = -3.3931567e38;
