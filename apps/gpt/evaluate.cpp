#include <cstdio>

#include "tapestry/apps/gpt/commands.h"

namespace apps::gpt {

int evaluate(int, char**) {
  std::fputs("error: [gpt evaluate] this command is not there yet\n", stderr);
  return 1;
}

}  // namespace apps::gpt
