// exchange.cpp: fills the kernels' structs.
#include "bindings/exchange.hpp"

#include <utility>

#include "core/logfmt.hpp"
#include "symm/link.hpp"

namespace deep_ll {
namespace {

template <class T>
T* pointer(std::uint64_t address) {
    return reinterpret_cast<T*>(address);
}

// By Phase.
constexpr const char* kWaits[Watch::kKinds] = {"nothing", "counts", "rows",    "credit",
                                               "outputs", "grants", "meeting", "labels"};

// Spinning pays only while every rank has a core of its own.
WaitPolicy policy_of(std::int64_t timeout_ns, bool crowded) {
    return {timeout_ns, crowded ? 50 : 20000, 10, python_interrupts};
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
      pool_(num_threads),
      watch_(rank, static_cast<int>(bases_.size()), kWaits) {}

void Exchange::use_link(Link& link, std::vector<std::uint8_t> linked) {
    link_ = &link;
    linked_ = std::move(linked);
}

void Exchange::replace(int rank, std::uint64_t base, bool linked) {
    const auto index = static_cast<std::size_t>(rank);
    bases_.at(index) = base;
    if (link_ != nullptr) linked_.at(index) = linked ? 1 : 0;
}

Common Exchange::common(const Shape& shape, const CallOptions& options, std::uint64_t ledger) {
    verdict_.wait.outcome = WaitOutcome::done;
    verdict_.wait.phase = 0;
    verdict_.disagreement.peer = -1;
    verdict_.nonsense.of = Nonsense::Of::nothing;
    // Where ranks are left out, others must not wait for this one because that waits to send.
    const std::int64_t patience_ns = mask_ == 0 ? options.timeout_ns : options.timeout_ns / 2;
    if (link_ != nullptr) link_->be_patient({patience_ns, python_interrupts});
    Common args{};
    args.shape = shape;
    args.window = window_;
    args.peers = {bases_.data(),
                  rank_,
                  static_cast<int>(bases_.size()),
                  link_,
                  linked_.data(),
                  pointer<std::uint8_t>(mask_),
                  window_.notes.offset};
    args.progress = &progress_;
    args.policy = policy_of(options.timeout_ns, crowded_);
    args.policy.costs = pointer<std::int64_t>(options.costs);
    args.policy.watch = &watch_;
    args.verdict = &verdict_;
    args.ledger = Ledger::at(ledger, shape);
    args.store = options.streaming ? Store::streaming : Store::cached;
    return args;
}

bool Exchange::dispatch_send(const Shape& shape,
                             const CallOptions& options,
                             std::uint64_t ledger,
                             const Batch& batch) {
    ChoiceCheck& bad = verdict_.bad_choice;
    bad.what = BadChoice::none;
    if (batch.indices != 0) {
        const Choices choices{pointer<const void>(batch.indices), batch.wide, nullptr};
        bad = copy_choices(choices, batch.num_tokens, shape, Ledger::at(ledger, shape).experts);
        if (bad.what != BadChoice::none) return false;
    }
    pool_.reserve_scratch(link_ == nullptr ? Label::bytes(shape) : staged_bytes(shape));
    DispatchArgs args{common(shape, options, ledger)};
    args.x = pointer<const bf16>(batch.x);
    args.num_tokens = batch.num_tokens;
    args.recv_count = pointer<std::int32_t>(batch.recv_count);
    args.layout_range = pointer<std::int64_t>(batch.layout_range);
    args.recv_slot = batch.slot;
    const Watch::Call call(watch_, "dispatch", progress_.dispatched + 1);
    const bool done = kernels_.dispatch_send(pool_, num_teams(options), args);
    if (done) count_sent(args);
    return done;
}

// Rows of a dispatch, with their labels.
void Exchange::count_sent(const Common& args) {
    const Shape& shape = args.shape;
    for (int expert = 0; expert < shape.num_experts; ++expert)
        if (args.ledger.serves(expert))
            watch_.moved(shape.owner(expert),
                         args.ledger.counts[expert] * (shape.row_bytes() + Label::bytes(shape)));
}

// Rows of a combine: pushed to those they came from, or read where they lie.
void Exchange::count_returned(const CombineArgs& args) {
    const Shape& shape = args.shape;
    const std::uint64_t row_bytes = args.logfmt ? logfmt_bytes(shape.hidden / kGroup) : shape.bf16_bytes();
    if (args.pulled) {
        for (int expert = 0; expert < shape.num_experts; ++expert)
            if (args.ledger.serves(expert))
                watch_.moved(shape.owner(expert), args.ledger.counts[expert] * row_bytes);
        return;
    }
    for (int i = 0; i < shape.num_local() * shape.num_ranks; ++i)
        watch_.moved(i % shape.num_ranks, (args.layout_range[i] & UINT32_MAX) * row_bytes);
}

bool Exchange::dispatch_receive(const Shape& shape,
                                const CallOptions& options,
                                std::uint64_t ledger,
                                const Batch& batch,
                                std::uint64_t stats) {
    DispatchArgs args{common(shape, options, ledger)};
    args.recv_count = pointer<std::int32_t>(batch.recv_count);
    args.layout_range = pointer<std::int64_t>(batch.layout_range);
    args.recv_slot = batch.slot;
    args.columns = options.columns;
    args.stats = pointer<std::int32_t>(stats);
    const Watch::Call call(watch_, "receiving dispatch", progress_.received[batch.slot]);
    return kernels_.dispatch_receive(pool_, num_teams(options), args);
}

bool Exchange::combine_send(const Shape& shape,
                            const CallOptions& options,
                            std::uint64_t ledger,
                            const Answer& answer,
                            std::uint64_t x) {
    CombineArgs args{common(shape, options, ledger)};
    args.x = pointer<const bf16>(x);
    args.recv_slot = answer.recv_slot;
    args.combine_slot = answer.combine_slot;
    args.pulled = answer.pulled;
    args.logfmt = answer.logfmt;
    args.layout_range = pointer<std::int64_t>(answer.layout_range);
    if (args.logfmt && link_ != nullptr) pool_.reserve_scratch(logfmt_bytes(shape.hidden / kGroup));
    const Watch::Call call(watch_, "combine", progress_.combined + 1);
    const bool done = kernels_.combine_send(pool_, num_teams(options), args);
    if (done) count_returned(args);
    return done;
}

bool Exchange::combine_receive(const Shape& shape,
                               const CallOptions& options,
                               std::uint64_t ledger,
                               const Answer& answer,
                               const Sum& sum) {
    CombineArgs args{common(shape, options, ledger)};
    args.recv_slot = answer.recv_slot;
    args.combine_slot = answer.combine_slot;
    args.pulled = answer.pulled;
    args.logfmt = answer.logfmt;
    args.layout_range = pointer<std::int64_t>(answer.layout_range);
    args.choices = pointer<std::int32_t>(sum.choices);
    args.weights = pointer<const float>(sum.weights);
    args.out = pointer<bf16>(sum.out);
    args.num_tokens = sum.num_tokens;
    const Watch::Call call(watch_, "receiving combine", progress_.returned[answer.combine_slot]);
    return kernels_.combine_receive(pool_, num_teams(options), args);
}

bool Exchange::await_credit(const Shape& shape, const CallOptions& options, std::uint32_t combine_slot) {
    Common args = common(shape, options, 0);
    args.combine_slot = combine_slot;
    const Watch::Call call(watch_, "taking the buffer of combine", progress_.combined + 1);
    return kernels_.await_credit(pool_, args);
}

bool Exchange::meet(const Shape& shape, const CallOptions& options) {
    const Watch::Call call(watch_, "meeting", progress_.met + 1);
    return kernels_.meet(pool_, common(shape, options, 0));
}

}  // namespace deep_ll
