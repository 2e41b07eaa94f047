#pragma once
// The page of --live: what a training run does, in a browser on this machine, and as a file in the run
// folder. page/live/README.md describes the page and its data.
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/apps/common/live_curve.h"
#include "tapestry/apps/common/page_server.h"
#include "tapestry/apps/common/run_folder.h"
#include "tapestry/apps/common/training_job.h"

namespace apps {

/// What does not change during a run.
struct LiveRun {
  std::string program;                                     ///< "gpt train"
  std::string title;                                       ///< "cnn on fashion-mnist"
  std::string unit;                                        ///< of throughput: "images" or "tokens"
  std::string held_out;                                    ///< what evaluated() measured: "test images"
  std::int64_t steps = 0;                                  ///< of the whole run
  std::int64_t epoch_steps = 0;                            ///< 0: the run has no epochs
  std::vector<std::pair<std::string, std::string>> facts;  ///< the seed, the mode, ...
};

/// A step of training, as this rank saw it.
struct LiveStep {
  std::int64_t step = 0;  ///< from 1
  double loss = NAN;      ///< of what this rank computes: Strategy::loss_parts() times its StepLoss
  double accuracy = NAN;
  std::int64_t samples = 0;  ///< of all ranks, in LiveRun::unit
  double seconds = 0;        ///< of training since the begin of the run
};

/// Every rank has one and tells it of each step. It does nothing unless the job is_live(). Rank 0 serves the
/// page. Training never waits for a reader: it hands finished texts to the server's thread.
class LivePage {
 public:
  /// The files "live.html" in `folder` and the address of the page are made by rank 0. Throws IoError.
  /// Collective with --live.
  LivePage(TrainingJob& job, const RunFolder& folder, LiveRun run);
  /// Unless finish() was called, the page says that the run has failed.
  ~LivePage();
  LivePage(const LivePage&) = delete;
  LivePage& operator=(const LivePage&) = delete;

  /// The line that tells the user where the page is; empty without a page.
  std::string address() const;

  /// A point from before the run was resumed, and what evaluated() got after it, if anything.
  void earlier(const CurvePoint& point, double loss = NAN, double accuracy = NAN);
  /// Seconds of training before the run was resumed.
  void resume_at(double seconds) { seconds_ = seconds; }
  /// Call it after each step, before TrainingJob::agree().
  void step(const LiveStep& step);
  /// The loss and the accuracy (or NaN) of held-out samples after a step. Writes the file.
  void evaluated(std::int64_t step, double loss, double accuracy = NAN);
  /// A text that the model wrote. The page shows the last ones.
  void text_sample(std::int64_t step, const std::string& text);
  /// A picture as SVG, in place of the earlier one with this title.
  void picture(std::int64_t step, const std::string& title, const std::string& svg);
  /// Returns what `train` returns. If it throws, the page says what failed: the error of this rank, and, if
  /// that is the loss of another rank, the error of that rank too, unless it was killed. Rethrows.
  int watch(const std::function<int()>& train);
  /// The run is "done", or "stopped", and `message` says how. Writes the file. If a browser has read in the
  /// last 10 s, waits up to 4 s until it has the last state.
  void finish(const std::string& state, const std::string& message);

 private:
  struct Evaluated {
    std::int64_t step;
    double loss, accuracy;
  };
  struct Sample {
    std::int64_t step;
    std::string title, text, svg;
  };
  void collect();
  void keep(const Evaluated& e);
  void failed(const std::exception& e);
  bool is_first_stage(int rank) const;
  std::string state() const;
  std::string samples() const;
  void publish();
  void publish_samples();
  void write_file() const;

  TrainingJob& job_;
  const RunFolder& folder_;
  const LiveRun run_;
  std::unique_ptr<PageServer> server_;  // null on the other ranks, and without --live
  std::vector<std::string> hosts_;       // of the ranks
  LiveCurve curve_;
  std::vector<Evaluated> evaluated_;
  std::vector<Sample> samples_;
  std::string state_ = "running", message_;
  std::int64_t changes_ = 0, sample_changes_ = 0;
  std::int64_t step_ = 0, samples_of_step_ = 0;  // of the last step
  double seconds_ = 0;
  std::chrono::steady_clock::time_point published_{}, asked_{};
  std::int64_t answered_ = 0, samples_answered_ = -1;
};

}  // namespace apps
