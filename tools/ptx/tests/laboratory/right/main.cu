// right NAME: runs one program. right --list: prints the names.
#include "tapestry/tools/ptx/tests/laboratory/right/right.h"

int main(int count, char** arguments) {
  const std::string name = count > 1 ? arguments[1] : "";
  for (const Program& program : programs()) {
    if (name == "--list") std::printf("%s\n", program.name);
    if (name != program.name) continue;
    try {
      program.run();
    } catch (const Failure& failure) {
      return failure.status;
    }
    return 0;
  }
  return name == "--list" ? 0 : 64;
}
