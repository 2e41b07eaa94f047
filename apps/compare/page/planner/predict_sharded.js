// internal/predict_sharded.cpp
class ShardedStep {
  constructor(c, n) {
    const slowdown = c.collectives.contention, count = c.count;
    this.phases = [];
    this.collectives = [];
    this.units = [];
    const post = (k, gathers, after, at_begin) => {
      const bytes = all_parameter_bytes(c.profile.blocks[k]);
      this.collectives.push({ seconds: gathers ? c.gather_s(bytes) : c.reduce_s(bytes), after, at_begin });
      this.units.push({ gathers, block: k });
      return this.collectives.length - 1;
    };
    for (let k = 0; k < count; ++k) this.phases.push({ seconds: slowdown.forward * at_(c.profile.blocks[k].forward_s, n), needs: post(k, true, k - 1, true) });
    this.loss = this.phases.length;
    this.phases.push({ seconds: slowdown.forward * at_(c.profile.loss.forward_s, n), needs: -1 });
    this.phases.push({ seconds: slowdown.backward * at_(c.profile.loss.backward_s, n), needs: -1 });
    const gather_of = [], phase_of = k => this.loss + 1 + count - k;
    gather_of[count - 1] = post(count - 1, true, this.loss + 1, false);
    if (count > 1) gather_of[count - 2] = post(count - 2, true, phase_of(count - 1), true);
    for (let k = count; k-- > 0;) {
      post(k, false, phase_of(k), false);
      if (k >= 2) gather_of[k - 2] = post(k - 2, true, phase_of(k - 1), true);
    }
    for (let k = count; k-- > 0;) this.phases.push({ seconds: slowdown.backward * at_(c.profile.blocks[k].backward_s, n), needs: gather_of[k] });
  }
  divided_after(times, k) {
    const next = 2 * this.loss + 2 - k;
    for (let i = 0; k > 0 && i < this.units.length; ++i)
      if (!this.units[i].gathers && this.units[i].block === k && times.computing_s[next] > 0) return 1 + (times.collective_ended_s[i] - times.phase_ended_s[next]) / times.computing_s[next];
    return 1;
  }
}

function predict_sharded_models(c) {
  const samples = c.samples_per_device, step = new ShardedStep(c, samples[0]), times = simulate_queues(step.phases, step.collectives, c.collectives), b = no_breakdown();
  for (let i = 0; i < times.computing_s.length; ++i) {
    b[i <= step.loss ? 'forward_s' : 'backward_s'] += times.computing_s[i];
    b.exposed_comm_s += times.waiting_s[i];
  }
  b.exposed_comm_s += times.tail_s;
  b.update_s = c.collectives.contention.update * c.update(c.all_blocks) / c.optimizer_parts;
  const divided_after = range(c.count).map(k => step.divided_after(times, k));
  return { breakdown: b, memory: memory_of_ranks(samples, n => peak_memory(c, { range: c.all_blocks, samples: [n], actions: ONE_PASS, data: c.batch_bytes(n), optimizer_share: 1 / c.optimizer_parts, sharded: c.model_parts, divided_after })) };
}
