// ATTN_API marks what the shared library exports; everything else is hidden.
#pragma once

#define ATTN_API __attribute__((visibility("default")))
