// Trains an image classifier on Fashion-MNIST, CIFAR-10 or synthetic images. `classifier --help` shows how to
// run it.
#include "tapestry/apps/classifier/train.h"
#include "tapestry/apps/common/bounded_spin.h"
#include "tapestry/apps/common/command_line.h"

int main(int argc, char** argv) {
  apps::bound_spin(argv);
  return apps::run_program("classifier", [&] {
    const std::optional<apps::Options> options = apps::parse_options(argc, argv);
    return options ? apps::train(*options) : 0;
  });
}
