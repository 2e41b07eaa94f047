// internal/overlap.cpp
function overlap(ready, costs, compute, all_reduce) {
  const phases = [], all_reduces = [];
  let done = 0;
  for (let i = 0; i < ready.length; ++i) {
    phases.push({ seconds: ready[i] - done, needs: -1 });
    all_reduces.push({ seconds: costs[i], after: i, at_begin: false, queue: 0, follows: -1 });
    done = ready[i];
  }
  phases.push({ seconds: compute - done, needs: -1 });
  return simulate_queues(phases, all_reduces, [all_reduce]);
}
