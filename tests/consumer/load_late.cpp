// Loads libraries one after another with dlopen(), long after the program has started, as Python loads
// modules. Calls touch() in all but the last, which is Tapestry. The program itself must not be linked with
// libstdc++: the first library brings it, as in a C program.
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    void* const library = dlopen(argv[i], RTLD_NOW);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
    if (i + 1 == argc) return 0;
    void* const touch = dlsym(library, "touch");
    if (!touch) return fprintf(stderr, "%s\n", dlerror()), 1;
    reinterpret_cast<void (*)()>(touch)();
  }
  fprintf(stderr, "usage: load_late LIBRARY...\n");
  return 1;
}
