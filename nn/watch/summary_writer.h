#pragma once
// Event files for TensorBoard.
//
//   watch::SummaryWriter writer("runs/first");
//   writer.add_scalar("loss/train", loss.item(), step);
//   writer.add_histogram("fc1.weight", net.fc1.weight, step);
//
// `tensorboard --logdir runs` shows them. The fields of the messages are those of TensorFlow's event.proto
// and summary.proto.
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry::watch {

class Message;

struct SummaryWriterOptions {
  /// TensorBoard discards what earlier files of the folder have for this step and later ones. Set it if a run
  /// was resumed at this step.
  std::optional<std::int64_t> purge_step = {};
  double flush_seconds = 10;  ///< how old events may be before they are written to the file
  std::string filename_suffix = {};
};

/// The value of a hyperparameter: a bool, a number or a text.
class HParam {
 public:
  using Value = std::variant<bool, double, std::string>;
  template <class T>
  requires std::is_arithmetic_v<T> HParam(T value)  // NOLINT: implicit, as all of these
      : HParam(static_cast<double>(value), std::is_same_v<T, bool>) {}
  HParam(const char* value);  // NOLINT
  HParam(std::string value);  // NOLINT
  HParam(const HParam&) = default;
  HParam& operator=(const HParam&) = default;
  const Value& value() const;

 private:
  HParam(double value, bool is_bool);
  std::shared_ptr<const Value> value_;  // a pointer, so that only summary_writer.cpp compiles the variant
};

/// Writes a new event file in a folder. All functions are thread-safe. They throw IoError if the file cannot
/// be written. Events that were not flushed are lost if the process is killed.
class SummaryWriter {
 public:
  using Options = SummaryWriterOptions;
  /// Creates the folder and the file. Throws IoError.
  explicit SummaryWriter(std::string log_dir, Options options = {});
  ~SummaryWriter();
  SummaryWriter(const SummaryWriter&) = delete;
  SummaryWriter& operator=(const SummaryWriter&) = delete;

  /// A number. TensorBoard stores it as f32.
  void add_scalar(const std::string& tag, double value, std::int64_t step);
  /// Several numbers in one chart. Each name gets a folder of its own, `log_dir/main_tag_name`, as in
  /// PyTorch.
  void add_scalars(const std::string& main_tag, const std::vector<std::pair<std::string, double>>& values,
                   std::int64_t step);
  /// The distribution of the elements, in buckets whose limits grow by a tenth, as PyTorch's default.
  /// Elements that are not finite are left out. Throws ValueError if no elements remain.
  void add_histogram(const std::string& tag, const Tensor& values, std::int64_t step);
  /// A picture, in the shapes and dtypes of encode_png().
  void add_image(const std::string& tag, const Tensor& image, std::int64_t step);
  /// Pictures (N, C, H, W) in one grid.
  void add_images(const std::string& tag, const Tensor& images, std::int64_t step);
  /// A text, which TensorBoard shows as Markdown.
  void add_text(const std::string& tag, const std::string& text, std::int64_t step);

  /// The hyperparameters of this run, and its results, which become scalars too. TensorBoard compares the
  /// runs of a folder by them. Call it once, at the end of the run.
  void add_hparams(const std::vector<std::pair<std::string, HParam>>& hparams,
                   const std::vector<std::pair<std::string, double>>& metrics, std::int64_t step = 0);

  /// Writes all events to the file.
  void flush();
  /// The path of the event file.
  const std::string& path() const;
  const std::string& log_dir() const { return log_dir_; }

 private:
  struct Impl;
  void add_value(const Message& value, std::int64_t step);
  const std::string log_dir_;
  const Options options_;
  std::unique_ptr<Impl> impl_;
  std::mutex scalars_mutex_;
  std::map<std::string, std::unique_ptr<SummaryWriter>> scalars_;  // the writers of add_scalars(), by folder
};

}  // namespace tapestry::watch
