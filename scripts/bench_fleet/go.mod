module navigator/bench_fleet

go 1.24.0
