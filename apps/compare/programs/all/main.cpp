// Runs one of the programs of the folder above, whose name is the first argument. Together they compile as
// fast as one.
#include <cstdio>
#include <functional>
#include <map>
#include <string>

#include "tapestry/tapestry.h"

#define main run
namespace one_device {
#include "tapestry/apps/compare/programs/one_device.cpp"
}
namespace data_parallel {
#include "tapestry/apps/compare/programs/data_parallel.cpp"
}
namespace distributed_data_parallel {
#include "tapestry/apps/compare/programs/distributed_data_parallel.cpp"
}
namespace zero {
#include "tapestry/apps/compare/programs/zero.cpp"
}
namespace fully_shard {
#include "tapestry/apps/compare/programs/fully_shard.cpp"
}
namespace stages {
#include "tapestry/apps/compare/programs/stages.cpp"
}
namespace pipelined {
#include "tapestry/apps/compare/programs/pipelined.cpp"
}
namespace strategy {
#include "tapestry/apps/compare/programs/strategy.cpp"
}
namespace placed {
#include "tapestry/apps/compare/programs/placed.cpp"
}
namespace resumable {
#include "tapestry/apps/compare/programs/resumable.cpp"
}
#undef main

int main(int argc, char** argv) {
  const std::map<std::string, std::function<int()>> programs = {
      {"one_device", one_device::run},
      {"data_parallel", data_parallel::run},
      {"distributed_data_parallel", distributed_data_parallel::run},
      {"zero", zero::run},
      {"fully_shard", fully_shard::run},
      {"stages", stages::run},
      {"pipelined", pipelined::run},
      {"placed", placed::run},
      {"strategy", strategy::run},
      {"resumable", [&] { return resumable::run(argc - 1, argv + 1); }}};
  const auto found = programs.find(argc >= 2 ? argv[1] : "");
  if (found == programs.end()) {
    std::fprintf(stderr, "usage: docs_five_diffs NAME\n");
    return 2;
  }
  return found->second();
}
