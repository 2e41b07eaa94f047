#include "tapestry/apps/compare/peak_memory.h"

namespace apps::compare {

namespace {

using tapestry::distributed::Action;
using Kind = Action::Kind;

// Follows a device through its actions, and keeps the moment at which it holds most.
class Watermark {
 public:
  Watermark(const Case& c, const MemoryCase& m) : case_(c), m_(m) {
    now_.parameters = c.parameters(m.part);
    now_.data = m.data;
    if (m.has_buckets) now_.buckets = c.parameters(m.part);
    note(0);
  }
  MemoryItems run() {
    for (const Action& action : m_.actions)
      if (action.kind == Kind::forward) forward();
      else if (!m_.in_halves) backward();
      else if (action.kind == Kind::backward) backward_of_inputs();
      else backward_of_weights();
    return peak_;
  }

 private:
  void note(double workspace) {
    now_.workspace = workspace;
    if (now_.total() > peak_.total()) peak_ = now_;
  }
  void forward() {
    if (m_.keeps_input) now_.activations += case_.input_bytes(m_.part.begin, m_.samples);
    for (std::size_t k = m_.part.begin; k < m_.part.end; ++k) forward_of(case_.profile.blocks[k]);
    if (m_.has_loss) forward_of(case_.profile.loss);
  }
  void forward_of(const BlockProfile& b) {
    now_.activations += b.kept_bytes.at(m_.samples);
    note(b.forward_extra_bytes.at(m_.samples));
  }
  void backward() {
    if (m_.has_loss) backward_of(case_.profile.loss);
    for (std::size_t k = m_.part.end; k-- > m_.part.begin;) backward_of(case_.profile.blocks[k]);
    if (m_.keeps_input) now_.activations -= case_.input_bytes(m_.part.begin, m_.samples);
    has_gradients_ = true;
  }
  void backward_of(const BlockProfile& b) {
    note(b.output_bytes.at(m_.samples) + b.backward_extra_bytes.at(m_.samples));
    now_.activations -= b.kept_bytes.at(m_.samples);
    hold_gradients(b);
  }
  void hold_gradients(const BlockProfile& b) {
    if (!m_.has_buckets && !has_gradients_) now_.gradients += static_cast<double>(b.all_parameter_bytes());
    note(0);
  }
  // Nobody waits for the gradients of images: the first part does all of it later.
  void backward_of_inputs() {
    if (m_.part.begin == 0) {
      now_.activations += gradient_from_after();
      return;
    }
    if (m_.has_loss) backward_of(case_.profile.loss);
    for (std::size_t k = m_.part.end; k-- > m_.part.begin;) {
      const BlockProfile& b = case_.profile.blocks[k];
      note(b.output_bytes.at(m_.samples) + b.backward_extra_bytes.at(m_.samples) -
           static_cast<double>(b.all_parameter_bytes()));
      now_.activations -= b.kept_bytes.at(m_.samples) - b.postponed_bytes;
    }
  }
  void backward_of_weights() {
    if (m_.part.begin == 0) {
      now_.activations -= gradient_from_after();
      return backward();
    }
    double come = 0;  // gradients are there all together before they are added to what there is
    for (std::size_t k = m_.part.end; k-- > m_.part.begin;) {
      const BlockProfile& b = case_.profile.blocks[k];
      note(come + b.backward_extra_bytes.at(m_.samples));
      come += static_cast<double>(b.all_parameter_bytes());
      now_.activations -= b.postponed_bytes;
    }
    for (std::size_t k = m_.part.end; k-- > m_.part.begin;) hold_gradients(case_.profile.blocks[k]);
    now_.activations -= case_.input_bytes(m_.part.begin, m_.samples);
    has_gradients_ = true;
  }
  double gradient_from_after() const {
    return m_.has_loss ? 0 : case_.profile.blocks[m_.part.end - 1].output_bytes.at(m_.samples);
  }

  const Case& case_;
  const MemoryCase& m_;
  MemoryItems now_, peak_;
  bool has_gradients_ = false;
};

}  // namespace

MemoryItems peak_of(const Case& c, const MemoryCase& m) { return Watermark(c, m).run(); }

}  // namespace apps::compare
