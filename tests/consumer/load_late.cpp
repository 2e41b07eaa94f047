// Loads the library by dlopen() while the program runs, as plugins are loaded. This must work.
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char** argv) {
  if (argc == 2 && dlopen(argv[1], RTLD_NOW)) return 0;
  fprintf(stderr, "%s\n", argc == 2 ? dlerror() : "usage: load_late LIBRARY");
  return 1;
}
