export function bundle(path?: string): Promise<string>;
