#!/usr/bin/env bash
# Sourced by visit.sh: unpack the slim engine once a machine and put it on the path.
# What the archive holds and how it is built: README.md beside this file.
ENGINE_DIR=${ENGINE_DIR:-/opt/engine}
if [ ! -e "$ENGINE_DIR/.unpacked" ]; then
  [ -f "$GPU_DIR/engine.tar.xz" ] || { echo "no $GPU_DIR/engine.tar.xz. next: bench/gpu/README.md, 'What travels'" >&2; exit 4; }
  mkdir -p "$ENGINE_DIR" && tar xJf "$GPU_DIR/engine.tar.xz" -C "$ENGINE_DIR" && touch "$ENGINE_DIR/.unpacked"
fi
export STUB_ROOTS=flashinfer,soundfile,cutlass HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
export SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK=1 SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND=python
ENGINE_PATH=$ENGINE_DIR/alt:$ENGINE_DIR/site23
# SGLang finds plugins by their entry points, so the plugin and the probe get a folder that has some.
PLUGINS=$ENGINE_DIR/plugins
mkdir -p "$PLUGINS/ddtree_visit-0.dist-info"
printf 'Metadata-Version: 2.1\nName: ddtree-visit\nVersion: 0\n' > "$PLUGINS/ddtree_visit-0.dist-info/METADATA"
printf '[sglang.srt.plugins]\nddtree = sglang_ddtree:register\nddtree_probe = ddtree_probe:register\n' > "$PLUGINS/ddtree_visit-0.dist-info/entry_points.txt"
ln -sfn "$PWD/sglang_ddtree" "$PLUGINS/sglang_ddtree"
for file in bench/gpu/probe/*.py; do ln -sf "$PWD/$file" "$PLUGINS/$(basename "$file")"; done
if [ -f "$GPU_DIR/caches.tar.xz" ] && [ ! -e "$ENGINE_DIR/.caches" ]; then
  tar xJf "$GPU_DIR/caches.tar.xz" -C "$HOME" && touch "$ENGINE_DIR/.caches"
fi
