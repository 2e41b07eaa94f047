// A library that a program loads before Tapestry. With STATIC_TLS_BYTES, it takes so much of the static TLS
// that libraries loaded with dlopen() share. Without, it uses a thread-local variable of libstdc++, so that
// the dynamic linker places all of libstdc++'s outside of static TLS.
#ifdef STATIC_TLS_BYTES
[[gnu::tls_model("initial-exec")]] thread_local char taken[STATIC_TLS_BYTES];
extern "C" void touch() { static_cast<volatile char*>(taken)[0] = 1; }
#else
#include <mutex>
static std::once_flag once;
extern "C" void touch() {
  std::call_once(once, [] {});
}
#endif
