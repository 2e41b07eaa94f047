#include "tapestry/data/loader.h"

namespace tapestry::data::detail {

void check_options(const char* loader, std::int64_t batch_size, int num_workers, int prefetch) {
  check(batch_size >= 1, "[", loader, "] batch_size is ", batch_size, "; it must be at least 1");
  check(num_workers >= 0 && num_workers <= 1024, "[", loader, "] num_workers is ", num_workers,
        "; it must be from 0 to 1024");
  check(prefetch >= 1 && prefetch <= 1024, "[", loader, "] prefetch is ", prefetch,
        "; it must be from 1 to 1024");
}

Context loading_context(Generator& generator) {
  Context context;
  context.grad_enabled = false;
  context.generator = &generator;
  return context;
}

}  // namespace tapestry::data::detail
