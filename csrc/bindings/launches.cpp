// launches.cpp: fills the structs that kernels on a GPU are given.
#include "bindings/launches.hpp"

namespace deep_ll {
namespace {

template <class T>
T* pointer(std::uint64_t address) {
    return reinterpret_cast<T*>(address);
}

constexpr std::uint32_t kRingBytes =
    32 << 10;  // of a team: two rows of 7168 bf16 channels, or 16 slots of 2 KiB

std::uint32_t message_bytes(const Shape& shape) {
    return static_cast<std::uint32_t>(round_up(Label::bytes(shape), 2 * kLine));
}

}  // namespace

Launches::Launches(const DeviceHeap& heap,
                   std::uint64_t device_state,
                   std::uint64_t host_state,
                   std::uint64_t host_view,
                   std::int64_t timeout_ns)
    : heap_(heap),
      window_(Window::carve(heap.num_bytes, heap.num_ranks)),
      device_(pointer<DeviceState>(device_state)),
      host_(pointer<HostState>(host_state)),
      view_(pointer<HostState>(host_view)),
      timeout_ns_(timeout_ns) {
    view_->verdict.disagreement.peer = -1;
}

std::uint32_t Launches::shared_bytes(const Shape& shape, int num_warps) {
    return static_cast<std::uint32_t>(num_warps / kTeamWarps) * (kRingBytes + message_bytes(shape));
}

void Launches::fill(Common& args, LeagueArgs& league, const Shape& shape, std::uint64_t ledger) const {
    args.shape = shape;
    args.window = window_;
    args.peers = {pointer<const std::uint64_t>(heap_.bases),
                  heap_.rank,
                  heap_.num_ranks,
                  pointer<Link>(heap_.network),
                  pointer<const std::uint8_t>(heap_.linked),
                  pointer<std::uint8_t>(heap_.mask),
                  window_.notes.offset};
    args.progress = &device_->progress;
    args.policy = {timeout_ns_, 0, 0, nullptr};
    args.verdict = &host_->verdict;
    args.ledger = Ledger::at(ledger, shape);
    league = {&device_->league, &host_->failed, kRingBytes, message_bytes(shape)};
}

DispatchLaunch Launches::dispatch(const Shape& shape,
                                  std::uint64_t ledger,
                                  const Batch& batch,
                                  bool columns,
                                  std::uint64_t stats,
                                  std::uint32_t halves) const {
    DispatchLaunch launch{};
    fill(launch.args, launch.league, shape, ledger);
    launch.args.recv_slot = batch.slot;
    launch.args.x = pointer<const bf16>(batch.x);
    launch.args.num_tokens = batch.num_tokens;
    launch.args.recv_count = pointer<std::int32_t>(batch.recv_count);
    launch.args.layout_range = pointer<std::int64_t>(batch.layout_range);
    launch.args.columns = columns;
    launch.args.stats = pointer<std::int32_t>(stats);
    launch.choices = {pointer<const void>(batch.indices), batch.wide, nullptr};
    launch.halves = halves;
    return launch;
}

CombineLaunch Launches::combine(const Shape& shape,
                                std::uint64_t ledger,
                                const Answer& answer,
                                std::uint64_t x,
                                const Sum& sum,
                                std::uint32_t halves) const {
    CombineLaunch launch{};
    fill(launch.args, launch.league, shape, ledger);
    launch.args.recv_slot = answer.recv_slot;
    launch.args.combine_slot = answer.combine_slot;
    launch.args.pulled = answer.pulled;
    launch.args.logfmt = answer.logfmt;
    launch.args.layout_range = pointer<std::int64_t>(answer.layout_range);
    launch.args.x = pointer<const bf16>(x);
    launch.args.choices = pointer<std::int32_t>(sum.choices);
    launch.args.weights = pointer<const float>(sum.weights);
    launch.args.out = pointer<bf16>(sum.out);
    launch.args.num_tokens = sum.num_tokens;
    launch.choices = {pointer<const void>(sum.indices), sum.wide, launch.args.ledger.experts};
    launch.halves = halves;
    return launch;
}

}  // namespace deep_ll
