#!/usr/bin/env python3
"""Times torch._grouped_mm on the experts of gpu_check's benchmark, one line a layer.

    grouped_mm.py EXPERTS MODEL INNER TOKENS_PER_EXPERT...

Prints "TOKENS_PER_EXPERT US" for each: the median time by events of both products of a forward (up
of 2 INNER columns, down), warm, of random bf16 data. Exit codes: 0; 3 where PyTorch, a GPU for it
or the operator is missing (says which); 2 wrong arguments.
"""
import statistics
import sys

ROUNDS = 7


def absent(reason):
    print(reason)
    sys.exit(3)


def time_us(torch, work):
    times = []
    for i in range(ROUNDS + 1):
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        if i > 0:
            times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def main():
    try:
        experts, model, inner, *all_tokens = map(int, sys.argv[1:])
    except ValueError:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    try:
        import torch
    except ImportError:
        absent("PyTorch is not there")
    if not torch.cuda.is_available():
        absent(f"PyTorch {torch.__version__} finds no GPU")
    if not hasattr(torch, "_grouped_mm"):
        absent(f"PyTorch {torch.__version__} has no torch._grouped_mm")

    def random(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    up, down = random(experts, 2 * inner, model), random(experts, model, inner)
    for tokens in all_tokens:
        x, act = random(experts * tokens, model), random(experts * tokens, inner)
        ends = torch.arange(1, experts + 1, device="cuda", dtype=torch.int32) * tokens

        def forward():
            torch._grouped_mm(x, up.transpose(-2, -1), offs=ends)
            torch._grouped_mm(act, down.transpose(-2, -1), offs=ends)

        try:
            print(tokens, f"{time_us(torch, forward):.1f}", flush=True)
        except RuntimeError as error:
            absent(f"torch._grouped_mm: {str(error).splitlines()[0]}")


if __name__ == "__main__":
    main()
