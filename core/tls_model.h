#pragma once
// TAPESTRY_HOT_TLS marks thread-local variables that most operations read. The library then addresses them
// directly (the initial-exec model) instead of through a function call. This needs static TLS, and little of
// it is left when a program loads the library with dlopen(). So only small variables may have this mark.
// Variables of libstdc++ must keep the default model: if the program has used them before, they are outside
// of static TLS, and the library could not be loaded.
#ifdef TAPESTRY_INITIAL_EXEC  // the build defines it for the library's own files
#define TAPESTRY_HOT_TLS [[gnu::tls_model("initial-exec")]]
#else
#define TAPESTRY_HOT_TLS
#endif
