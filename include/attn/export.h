/* ATTN_API marks what the shared library exports; everything else is hidden. C and C++. */
#ifndef ATTN_EXPORT_H
#define ATTN_EXPORT_H

#define ATTN_API __attribute__((visibility("default")))

#endif
