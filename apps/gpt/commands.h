#pragma once
// The commands of the program. Each parses its own options, of which argv[1] is the first, and returns the
// exit status: 0 done, 1 failed, 2 wrong options, 128 + N stopped by signal N.

namespace apps::gpt {

int train(int argc, char** argv);
int tune(int argc, char** argv);
int generate(int argc, char** argv);
int chat(int argc, char** argv);
int evaluate(int argc, char** argv);
int convert(int argc, char** argv);

}  // namespace apps::gpt
