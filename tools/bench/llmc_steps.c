// llm.c's side of tools/bench_lm: training steps of its GPT-2 on the CPU, by the protocol of turns.h.
// Usage: llmc_steps CHECKPOINT BATCH LENGTH. Compile with -DTESTING, which leaves out llm.c's main().
#include "train_gpt2.c"

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  FILE* answers = fdopen(dup(1), "w");
  dup2(2, 1);  // llm.c prints to stdout
  GPT2 model;
  gpt2_build_from_checkpoint(&model, argv[1]);
  const size_t batch = (size_t)atoi(argv[2]), length = (size_t)atoi(argv[3]);
  int *ids = malloc(batch * length * sizeof(int)), *next = malloc(batch * length * sizeof(int));
  for (size_t i = 0; i < batch * length; ++i) {
    ids[i] = rand() % model.config.vocab_size;
    next[i] = rand() % model.config.vocab_size;
  }
  char name[64];
  int repeats, step = 0;
  while (scanf("%63s %d", name, &repeats) == 2) {
    for (int i = 0; i < repeats; ++i) {
      struct timespec start, end;
      clock_gettime(CLOCK_MONOTONIC, &start);
      gpt2_forward(&model, ids, next, batch, length);
      gpt2_zero_grad(&model);
      gpt2_backward(&model);
      gpt2_update(&model, 1e-4f, 0.9f, 0.999f, 1e-8f, 0.01f, ++step);
      clock_gettime(CLOCK_MONOTONIC, &end);
      fprintf(answers, "%.6f ", (end.tv_sec - start.tv_sec) * 1e3 + (end.tv_nsec - start.tv_nsec) * 1e-6);
    }
    fprintf(answers, "\n");
    fflush(answers);
  }
  return 0;
}
