// Which sanitizer this program is built with, for what can't be tested under it.
#pragma once

// The thread sanitizer does not follow threads of a forked child, and has an operator new of its
// own.
#if defined(__SANITIZE_THREAD__)
#define ATTN_TEST_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ATTN_TEST_THREAD_SANITIZER 1
#endif
#endif

#ifndef ATTN_TEST_THREAD_SANITIZER
#define ATTN_TEST_THREAD_SANITIZER 0
#endif

namespace attn::test {
inline constexpr bool kThreadSanitizer = ATTN_TEST_THREAD_SANITIZER != 0;
}
