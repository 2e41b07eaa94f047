#include <cstdio>

#include "tapestry/apps/gpt/commands.h"

namespace apps::gpt {

int tune(int, char**) {
  std::fputs("error: [gpt tune] this command is not there yet\n", stderr);
  return 1;
}

}  // namespace apps::gpt
