// Trains an image classifier on Fashion-MNIST, CIFAR-10 or synthetic images. `classifier --help` shows how to
// run it.
#include <cstdio>
#include <exception>

#include "tapestry/apps/classifier/train.h"
#include "tapestry/apps/common/bounded_spin.h"
#include "tapestry/apps/common/command_line.h"

int main(int argc, char** argv) {
  apps::bound_spin(argv);
  const auto failed = [](const std::exception& e, int status) {
    std::fflush(stdout);
    std::fprintf(stderr, "error: %s\n", e.what());
    return status;
  };
  try {
    const std::optional<apps::Options> options = apps::parse_options(argc, argv);
    return apps::end_of_output("classifier", options ? apps::train(*options) : 0);
  } catch (const apps::UsageError& e) {
    return failed(e, 2);
  } catch (const std::exception& e) {
    return failed(e, 1);
  }
}
