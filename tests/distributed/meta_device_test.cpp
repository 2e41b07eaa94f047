// The meta device has no elements to send: collectives and DDP refuse its tensors on every rank.
#include "tapestry/tapestry.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;

TEST_CASE("collectives and DDP refuse tensors of the meta device by name") {
  run_local_ranks(
      2,
      [](const std::shared_ptr<ProcessGroup>& group) {
        const auto refused = [](const std::function<void()>& fn) -> std::string {
          try {
            fn();
          } catch (const DeviceError& e) {
            return e.what();
          }
          return "";
        };
        const Tensor meta = ones({4}, kMeta), real = ones({2});
        const std::string reduce = refused([&] { group->all_reduce(meta).wait(); });
        const std::string gather = refused([&] { group->all_gather(meta, real).wait(); });
        const std::string ddp = refused([&] {
          const DeviceGuard guard("meta");
          nn::Linear net({.in_features = 2, .out_features = 2});
          DistributedDataParallel(net, {.process_group = group});
        });
        check(reduce.starts_with("[all_reduce]") && reduce.find("is on the meta device") != std::string::npos,
              reduce);
        check(gather.starts_with("[all_gather]"), gather);
        check(ddp.find("is on the meta device") != std::string::npos, ddp);
        // The group still works.
        group->all_reduce(real).wait();
        check(real.sum().item() == 4, "the sum of the ranks");
      },
      {.timeout = std::chrono::milliseconds(20'000)});
}
