// A library that writes to stderr when it is loaded, as drivers do, and has nothing in it.
#include <unistd.h>

#include <cstring>

namespace {

[[gnu::constructor]] void complain() {
  const char text[] = "libEGL warning: noise of a driver\n";
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) _exit(1);
}

}  // namespace
