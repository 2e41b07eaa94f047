// planted NAME [mended]: runs one planted bug. planted --list: prints the names.
#include "tapestry/tools/ptx/tests/laboratory/planted/bugs.h"

int main(int count, char** arguments) {
  const std::string name = count > 1 ? arguments[1] : "";
  for (const Bug& bug : bugs()) {
    if (name == "--list") std::printf("%s\n", bug.name);
    if (name != bug.name) continue;
    try {
      (count > 2 && std::string(arguments[2]) == "mended" ? bug.mended : bug.planted)();
    } catch (const Failure& failure) {
      return failure.status;
    }
    return 0;
  }
  return name == "--list" ? 0 : 64;
}
