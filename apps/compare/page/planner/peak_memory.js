// internal/peak_memory.cpp. A schedule has the members of DeviceSchedule; those that it lacks have the defaults here.
const ITEMS = ['parameters', 'gradients', 'optimizer', 'activations', 'buckets', 'data', 'workspace'];
const no_items = () => ({ parameters: 0, gradients: 0, optimizer: 0, activations: 0, buckets: 0, data: 0, workspace: 0 });
const total = m => m.parameters + m.gradients + m.optimizer + m.activations + m.buckets + m.data + m.workspace;
const ONE_PASS = [['F', 0], ['B', 0]];

class LiveBuckets {
  constructor(buckets) {
    this.buckets = buckets;
    this.arrived = this.opened = this.posted = 0;
  }
  bytes() {
    let bytes = 0;
    for (let i = this.posted > 2 ? this.posted - 2 : 0; i < this.opened; ++i) bytes += this.buckets.bytes[i];
    return bytes;
  }
  open() { if (this.arrived < this.buckets.of_gradient.length) this.opened = Math.max(this.opened, this.buckets.of_gradient[this.arrived++] + 1); }
  post() {
    const of = this.buckets.of_gradient;
    if (this.arrived > 0 && (this.arrived === of.length || of[this.arrived] !== of[this.arrived - 1])) this.posted = of[this.arrived - 1] + 1;
  }
}

// DeviceSchedule::held is an array of {action, part, items, between}. Action -1 is the begin of the step.
class PeakTracker {
  constructor(c, schedule) {
    const s = { data: 0, has_loss: true, keeps_input: false, is_stage: false, keeps_output: false, has_gathered: false, has_buckets: false, zero_bubble: false, optimizer_share: 1, sharded: 1, keeps_whole: false, divided_after: [], divides_buckets: false, held: null, ...schedule };
    this.c = c;
    this.s = s;
    this.held = s.held;
    this.action = this.elapsed_s = 0;
    this.now = no_items();
    this.peak = no_items();
    this.now.parameters = c.parameter_bytes(s.range) / s.sharded;
    this.now.optimizer = c.profile.optimizer_state * c.parameter_bytes(s.range) * s.optimizer_share;
    this.now.data = s.data;
    if (s.keeps_whole) this.now.parameters += c.parameter_bytes(s.range);
    if (s.has_buckets) this.now.buckets = s.divides_buckets ? c.parameter_bytes(s.range) * s.optimizer_share : c.parameter_bytes(s.range) - c.sum(s.range, b => c.unsummed_bytes(b));
    this.buckets = [false, true].map(of_parts => new LiveBuckets(s.divides_buckets ? ddp_buckets(c, s.range, no_times(s.range), 1, of_parts) : { bytes: [], of_gradient: [] }));
    this.n = 0;
    this.whole = 0;
    this.late = null;
    this.undivided = 0;
    this.divided_after = 0;
    this.has_gradients = false;
    this.is_last = false;
    this.update_peak(0);
    if (s.held) s.held.push({ action: -1, part: 0, items: { ...this.now }, between: true });
  }
  run() {
    for (const action of this.s.actions) {
      this.elapsed_s = 0;
      const first = this.held ? this.held.length : 0;
      const [kind, micro_batch] = action;
      this.n = this.s.samples[micro_batch];
      this.is_last = action === this.s.actions[this.s.actions.length - 1];
      if (kind === 'F') this.forward();
      else if (!this.s.zero_bubble) this.backward();
      else if (kind === 'B') this.input_grad_pass();
      else this.weight_grad_pass();
      this.end_action(first);
    }
    return this.peak;
  }
  update_peak(bytes) {
    this.now.workspace = bytes;
    if (total(this.now) > total(this.peak)) this.peak = { ...this.now };
    const held = this.held;
    if (held && held.length && total(this.now) > total(held[held.length - 1].items)) held[held.length - 1].items = { ...this.now };
  }
  begin_block(seconds, layers = null) {
    if (!this.held) return;
    if (layers) seconds += this.c.layers_s(layers, this.n);
    this.now.workspace = 0;
    this.held.push({ action: this.action, part: this.elapsed_s, items: { ...this.now } });
    this.elapsed_s += seconds;
  }
  end_action(first) {
    if (!this.held) return;
    for (let i = first; i < this.held.length; ++i) this.held[i].part = this.elapsed_s > 0 ? this.held[i].part / this.elapsed_s : 0;
    this.now.workspace = 0;
    this.held.push({ action: this.action++, part: 1, items: { ...this.now }, between: true });
  }
  update_peak_of(b, bytes) {
    const saved = clamp(at_(b.saved_bytes, this.n), 0, Math.max(0, bytes));
    this.now.activations += saved;
    this.update_peak(bytes - saved);
    this.now.activations -= saved;
  }
  block(k) { return this.c.profile.blocks[k]; }
  last_block() { return this.block(this.s.range.end - 1); }
  input_bytes() {
    if (!this.s.keeps_input) return 0;
    const input = this.c.input_bytes(this.s.range.begin, this.n);
    return this.s.is_stage ? input + at_(this.block(this.s.range.begin).freed_input_bytes, this.n) : input;
  }
  received_extra_bytes(b) {
    if (this.s.has_loss || b !== this.last_block()) return 0;
    const received = this.s.is_stage ? at_(b.received_extra_bytes, this.n) : 0;
    return (this.has_gradients ? Math.max(received, 0) : received) - (this.s.has_gathered ? at_(b.output_bytes, this.n) : 0);
  }

  forward() {
    this.now.activations += this.input_bytes();
    for (let k = this.s.range.begin; k < this.s.range.end; ++k) {
      this.begin_block(at_(this.block(k).forward_s, this.n), this.block(k).layers_forward);
      this.hold_whole(k, k + 1);
      this.forward_of(this.block(k));
    }
    this.release_whole();
    if (!this.s.has_loss) return;
    this.begin_block(at_(this.c.profile.loss.forward_s, this.n), this.c.profile.loss.layers_forward);
    this.forward_of(this.c.profile.loss);
  }
  hold_whole(k, next) {
    this.release_whole();
    if (this.s.sharded === 1 || this.s.keeps_whole) return;
    this.whole = all_parameter_bytes(this.block(k));
    if (next !== k && next >= this.s.range.begin && next < this.s.range.end) this.whole += all_parameter_bytes(this.block(next));
    this.now.parameters += this.whole;
  }
  release_whole() {
    this.now.parameters -= this.whole;
    this.whole = 0;
  }
  forward_of(b) {
    const freed = at_(b.freed_input_bytes, this.n);
    this.now.activations += at_(b.saved_bytes, this.n) + freed;
    this.update_peak(at_(b.forward_extra_bytes, this.n));
    this.now.activations -= freed;
  }

  backward() {
    const held = this.s.keeps_output ? at_(this.last_block().unsaved_output_bytes, this.n) : 0;
    this.now.activations += held;
    if (this.s.has_loss) {
      this.begin_block(at_(this.c.profile.loss.backward_s, this.n), this.c.profile.loss.layers_backward);
      this.backward_of(this.c.profile.loss);
    }
    for (let k = this.s.range.end; k-- > this.s.range.begin;) {
      this.begin_block(at_(this.block(k).backward_s, this.n), this.block(k).layers_backward);
      if (k === 0 && this.s.range.end > 1) this.hold_whole(0, 1);
      else this.hold_whole(k, k - 1);
      this.backward_of(this.block(k));
    }
    this.release_whole();
    this.end_division();
    this.now.activations -= held + this.input_bytes();
    this.has_gradients = true;
  }
  backward_of(b) {
    this.now.activations -= at_(b.saved_bytes, this.n);
    let received = this.received_extra_bytes(b), arrived = 0;
    b.backward.forEach((i, index) => {
      const live = this.live_bucket_bytes();
      this.now.buckets += live;
      if (this.undivided > 0 && this.divided_after * b.backward.length <= index + 0.5) this.end_division();
      this.now.gradients += arrived;
      this.update_peak_of(b, this.interval_bytes(i) + received);
      received = 0;
      const gradient = i.parameter >= 0 ? b.parameter_bytes[i.parameter] : 0;
      if (i.parameter >= 0 && this.s.divides_buckets && this.is_last) {
        const own = this.buckets[b.parts.includes(i.parameter) ? 1 : 0];
        own.open();
        this.now.buckets += this.live_bucket_bytes() - live;
        this.update_peak_of(b, at_(i.end_bytes, this.n));
        this.now.buckets -= this.live_bucket_bytes();
        own.post();
      } else this.now.buckets -= live;
      this.now.gradients -= arrived;
      const moves = this.moves_to_buckets() && !(b.parts.includes(i.parameter) && this.c.unsummed_bytes(b) > 0);
      if (!this.has_gradients && !moves) arrived += gradient;
      if (this.has_gradients && moves) arrived -= gradient;
      if (this.late && i.parameter >= 0 && b === this.block(0)) {
        this.hold_whole(0, this.c.count);
        const late = this.late;
        this.late = null;
        this.divide(late);
      }
    });
    this.allocate_gradients(b);
  }
  interval_bytes(i) {
    const fresh = at_(i.peak_bytes, this.n);
    if (!this.has_gradients) return fresh;
    const added = at_(i.accumulate_bytes, this.n);
    return this.s.sharded > 1 || this.s.divides_buckets ? Math.max(added, fresh) : added;
  }
  live_bucket_bytes() { return this.buckets[0].bytes() + this.buckets[1].bytes(); }
  moves_to_buckets() { return this.s.has_buckets && this.is_last; }
  allocate_gradients(b) {
    if (b.parameter_bytes.length === 0) return;
    const bytes = all_parameter_bytes(b);
    const moved = this.moves_to_buckets() ? bytes - this.c.unsummed_bytes(b) : 0;
    if (!this.has_gradients) this.now.gradients += bytes - moved;
    else this.now.gradients -= moved;
    if (this.s.sharded > 1) {
      const k = this.c.profile.blocks.indexOf(b);
      if (k === 1 && this.s.range.begin === 0) this.late = b;
      else {
        if (k > this.s.range.begin) this.hold_whole(k - 1, k - 1);
        else this.release_whole();
        this.divide(b);
      }
    }
    this.update_peak(0);
  }
  divide(b) {
    if (!this.is_last) return;
    this.end_division();
    this.undivided = all_parameter_bytes(b);
    this.now.gradients += this.undivided / this.s.sharded;
    this.divided_after = this.s.divided_after[this.c.profile.blocks.indexOf(b)];
  }
  end_division() {
    this.now.gradients -= this.undivided;
    this.undivided = 0;
  }

  input_grad_pass() {
    if (this.s.range.begin === 0) {
      this.now.activations += this.incoming_gradient_bytes();
      return;
    }
    if (this.s.has_loss) this.input_grad_pass_of(this.c.profile.loss);
    for (let k = this.s.range.end; k-- > this.s.range.begin;) this.input_grad_pass_of(this.block(k));
    this.now.activations -= this.freed_between_passes();
  }
  input_grad_pass_of(b) {
    this.begin_block(b.input_grad_s, b.layers_backward);
    this.now.activations -= at_(b.saved_bytes, this.n);
    this.update_peak_of(b, b.input_grad.peak + this.received_extra_bytes(b));
    this.now.activations += b.input_grad.growth;
  }
  freed_between_passes() {
    return (this.s.has_loss ? 0 : at_(this.last_block().unsaved_output_bytes, this.n)) + at_(this.block(this.s.range.begin).freed_input_bytes, this.n);
  }
  weight_grad_pass() {
    if (this.s.range.begin === 0) {
      this.now.activations -= this.incoming_gradient_bytes();
      this.backward();
      return;
    }
    let grown = 0, kept = 0;
    for (let k = this.s.range.end; k-- > this.s.range.begin;) {
      const b = this.block(k), pass = this.has_gradients ? b.weight_grad_accumulate : b.weight_grad;
      this.begin_block(b.weight_grad_s);
      this.update_peak(grown + pass.peak);
      grown += pass.growth;
      kept += b.input_grad.growth;
    }
    this.now.activations -= kept + this.c.profile.loss.input_grad.growth * (this.s.has_loss ? 1 : 0) + this.input_bytes() - this.freed_between_passes();
    for (let k = this.s.range.end; k-- > this.s.range.begin;) this.allocate_gradients(this.block(k));
    this.has_gradients = true;
  }
  incoming_gradient_bytes() { return this.s.has_loss ? 0 : at_(this.last_block().output_bytes, this.n); }
}
const peak_memory = (c, schedule) => new PeakTracker(c, schedule).run();
// Begin and end of each action give samples {begin_s, items}.
function on_clock(held, actions) {
  const all = [];
  let last = null;
  for (const h of held) {
    const [begin, end] = h.action < 0 ? [0, 0] : actions[h.action], now = h.action < 0 ? 0 : begin + h.part * (end - begin);
    if (!last || now > all[all.length - 1].begin_s) all.push({ begin_s: now, items: h.items });
    else if (last.between || total(h.items) > total(last.items)) all[all.length - 1].items = h.items;
    else continue;
    last = h;
  }
  return all;
}
// `kept` is {device, samples, peak}, empty at first; `peak` is the total of the device whose memory it has.
function keep_memory_over_time(kept, device, peak, samples) {
  if (kept.samples && total(peak) <= kept.peak) return;
  Object.assign(kept, { device, samples, peak: total(peak) });
}
// Devices with as many samples hold as much.
function memory_of_ranks(samples, memory) {
  const known = new Map();
  return samples.map((n, r) => {
    const key = r === 0 ? 'first' : n;
    if (!known.has(key)) known.set(key, memory(n, r));
    return known.get(key);
  });
}
