// exchange.cpp: fills the kernels' structs.
#include "bindings/exchange.hpp"

#include <utility>

namespace deep_ll {
namespace {

template <class T>
T* pointer(std::uint64_t address) {
    return reinterpret_cast<T*>(address);
}

// Spinning pays only while every rank has a core of its own.
WaitPolicy policy_of(std::int64_t timeout_ns, bool crowded) {
    const std::int64_t deadline = timeout_ns == 0 ? 0 : now_ns() + timeout_ns;
    return {deadline, crowded ? 50 : 20000, 10, python_interrupts};
}

}  // namespace

Exchange::Exchange(std::vector<std::uint64_t> bases,
                   int rank,
                   std::uint64_t heap_bytes,
                   int num_threads,
                   bool crowded,
                   const Kernels& kernels)
    : bases_(std::move(bases)),
      rank_(rank),
      crowded_(crowded),
      window_(Window::carve(heap_bytes, static_cast<int>(bases_.size()))),
      kernels_(kernels),
      pool_(num_threads) {}

Common Exchange::common(const Shape& shape, const CallOptions& options, std::uint64_t ledger) {
    report_.outcome = WaitOutcome::done;
    disagreement_.peer = -1;
    phase_ = Phase::none;
    Common args{};
    args.shape = shape;
    args.window = window_;
    args.peers = {bases_.data(), rank_, static_cast<int>(bases_.size())};
    args.progress = &progress_;
    args.policy = policy_of(options.timeout_ns, crowded_);
    args.report = &report_;
    args.disagreement = &disagreement_;
    args.phase = &phase_;
    args.ledger = Ledger::at(ledger, shape);
    args.num_teams = options.small ? 1 : pool_.num_teams();
    args.store = options.streaming ? Store::streaming : Store::cached;
    return args;
}

bool Exchange::dispatch_send(const Shape& shape,
                             const CallOptions& options,
                             std::uint64_t ledger,
                             const Batch& batch) {
    bad_choice_.what = BadChoice::none;
    if (batch.indices != 0) {
        bad_choice_ = copy_choices(pointer<const void>(batch.indices), batch.wide, batch.num_tokens, shape,
                                   Ledger::at(ledger, shape).experts, nullptr);
        if (bad_choice_.what != BadChoice::none) return false;
    }
    pool_.reserve_scratch(Label::bytes(shape));
    DispatchArgs args{common(shape, options, ledger)};
    args.x = pointer<const bf16>(batch.x);
    args.num_tokens = batch.num_tokens;
    args.recv_count = pointer<std::int32_t>(batch.recv_count);
    args.layout_range = pointer<std::int64_t>(batch.layout_range);
    return kernels_.dispatch_send(pool_, args);
}

bool Exchange::dispatch_receive(const Shape& shape,
                                const CallOptions& options,
                                std::uint64_t ledger,
                                std::uint32_t epoch,
                                std::uint64_t stats) {
    DispatchArgs args{common(shape, options, ledger)};
    args.epoch = epoch;
    args.columns = options.columns;
    args.stats = pointer<std::int32_t>(stats);
    return kernels_.dispatch_receive(pool_, args);
}

bool Exchange::combine_send(const Shape& shape,
                            const CallOptions& options,
                            std::uint64_t ledger,
                            const Answer& answer,
                            std::uint64_t x) {
    CombineArgs args{common(shape, options, ledger)};
    args.x = pointer<const bf16>(x);
    args.round = answer.round;
    args.pulled = answer.pulled;
    return kernels_.combine_send(pool_, args);
}

bool Exchange::combine_receive(const Shape& shape,
                               const CallOptions& options,
                               std::uint64_t ledger,
                               const Answer& answer,
                               const Sum& sum) {
    CombineArgs args{common(shape, options, ledger)};
    args.epoch = answer.epoch;
    args.round = answer.round;
    args.pulled = answer.pulled;
    args.choices = pointer<const std::int32_t>(sum.choices);
    args.weights = pointer<const float>(sum.weights);
    args.out = pointer<bf16>(sum.out);
    args.num_tokens = sum.num_tokens;
    return kernels_.combine_receive(pool_, args);
}

bool Exchange::await_credit(const Shape& shape, const CallOptions& options) {
    return kernels_.await_credit(pool_, common(shape, options, 0));
}

}  // namespace deep_ll
