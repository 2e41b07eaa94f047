#pragma once
// Right programs that a machine could take for wrong ones. tapestry-ptx run --check must find nothing in
// them.
#include "tapestry/tools/ptx/tests/laboratory/planted/bugs.h"

struct Program {
  const char* name;
  void (*run)();
};
inline std::vector<Program>& programs() {
  static std::vector<Program> all;
  return all;
}
struct RegisteredProgram {
  explicit RegisteredProgram(Program program) { programs().push_back(program); }
};
#define RIGHT(name)                                                \
  static void name();                                              \
  static const RegisteredProgram registered_##name({#name, name}); \
  static void name()
