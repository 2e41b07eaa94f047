// Loads the library with dlopen() long after the program has started, as plugins are loaded.
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char** argv) {
  if (argc == 2 && dlopen(argv[1], RTLD_NOW)) return 0;
  fprintf(stderr, "%s\n", argc == 2 ? dlerror() : "usage: load_late LIBRARY");
  return 1;
}
